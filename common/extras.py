"""Packages that only some installations have, and the extra that installs each, as the metadata of ours declare it.

Their home is `project.optional-dependencies` in pyproject.toml.
"""

import operator
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires

PRODUCT = "zerobeast"
#: modules whose packages have other names, which differ by more than case and - for _
PACKAGES_OF_MODULES = {"PIL": "pillow", "pygame": "pygame-ce"}
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^]]*)\])?(?:.*extra == ['\"]([\w.-]+)['\"])?")


def how_to_install(error: ModuleNotFoundError, preferred: str = "") -> str:
    """A sentence with what is missing and how to install it.

    Args:
      error: has the name of the module.
      preferred: the extra to install, if it is one that brings the package.

    Raises:
      ModuleNotFoundError: `error` itself, if no extra installs the package: the installation is broken.
    """
    if not (extra := extra_of(error.name, preferred)):
        raise error
    return f"{error.name} is not installed: pip install '{PRODUCT}[{extra}]'"


def extra_of(module: str | None, preferred: str = "") -> str | None:
    """The extra that installs a module's package: the preferred one or else the first that does; None: there is none.

    None of ours is known if our own package is not installed either.
    """
    names = {_normalise(module), PACKAGES_OF_MODULES.get(module, "")} if module else set()
    found = [extra for extra, packages in packages_of_extras().items() if names & packages]
    return preferred if preferred in found else next(iter(found), None)


@cache
def packages_of_extras() -> dict[str, frozenset[str]]:
    """The packages of each extra, in lower case with -: its own, those of extras that it is made of, and what an extra
    of an installed package adds.
    """
    extras = dict.fromkeys(extra for _, _, extra in _requirements(PRODUCT) if extra)
    return {extra: frozenset(_packages_of(PRODUCT, extra)) for extra in extras}


def missing_of(extra: str) -> list[str]:
    """Packages of an extra that are not installed, by name."""
    return sorted(package for package in packages_of_extras()[extra] if not is_installed(package))


def is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _packages_of(package: str, extra: str) -> Iterator[str]:
    for needed, extras, asking in _requirements(package):
        if asking == extra:
            yield from () if needed == PRODUCT else (needed,)
            for each in extras:
                yield from _packages_of(needed, each)


def _requirements(package: str) -> Iterator[tuple[str, list[str], str | None]]:
    """Name, extras and the extra that asks for it, of each requirement of an installed package on this Python."""
    try:
        texts = requires(package) or []
    except PackageNotFoundError:
        return
    found = (_REQUIREMENT.match(text) for text in texts if _is_for_this_python(text))
    for name, extras, asking in (each.groups() for each in found if each):
        yield _normalise(name), [each.strip() for each in (extras or "").split(",")], asking


def _is_for_this_python(requirement: str) -> bool:
    bounds = re.findall(r"python_version\s*([<>]=?)\s*['\"](\d+)\.(\d+)", requirement)
    return all(_COMPARISONS[sign](sys.version_info[:2], (int(major), int(minor))) for sign, major, minor in bounds)


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
