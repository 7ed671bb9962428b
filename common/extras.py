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


def how_to_install(error: ModuleNotFoundError) -> str:
    """A sentence with what is missing and how to install it.

    Raises:
      ModuleNotFoundError: `error` itself, if no extra installs the package: the installation is broken.
    """
    if not (extra := extra_of(error.name)):
        raise error
    return f"{error.name} is not installed: pip install '{PRODUCT}[{extra}]'"


def extra_of(module: str | None) -> str | None:
    """The first extra that installs a module's package; None if there is none, or ours is not installed either."""
    names = {_normalise(module), PACKAGES_OF_MODULES.get(module, "")} if module else set()
    return next((extra for extra, packages in packages_of_extras().items() if names & packages), None)


@cache
def packages_of_extras() -> dict[str, frozenset[str]]:
    """The packages of each extra, in lower case with -: its own, and what an extra of an installed one of them adds.

    An extra that is made of others has what these have not, and is left out if that is nothing.
    """
    found: dict[str, set[str]] = {}
    for package, of_package, extra in _requirements(PRODUCT):
        if extra and package != PRODUCT:
            found.setdefault(extra, set()).update({package}, _added(package, of_package))
    return {extra: frozenset(packages) for extra, packages in found.items()}


def missing_of(extra: str) -> list[str]:
    """Packages of an extra that are not installed, by name."""
    return sorted(package for package in packages_of_extras()[extra] if not is_installed(package))


def is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _added(package: str, extras: list[str]) -> Iterator[str]:
    """What the extras of a package add, if it is installed."""
    return (needed for needed, _, extra in _requirements(package) if extra in extras)


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
