"""Packages that only some installations have, and the extra that installs each, as the metadata of ours declare it.

Their home is `project.optional-dependencies` in pyproject.toml.
"""

import operator
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires
from typing import NamedTuple

PRODUCT = "zerobeast"
#: modules whose packages have other names, which differ by more than case and - for _
PACKAGES_OF_MODULES = {"PIL": "pillow", "pygame": "pygame-ce"}
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^]]*)\])?(?:.*extra == ['\"]([\w.-]+)['\"])?")


class Requirement(NamedTuple):
    """A line of a package's metadata."""

    package: str  #: in lower case with -
    extras: list[str]  #: of the package
    asking: str | None  #: the extra that asks for it; None: the package itself does


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
    names = possible_packages(module or "")
    found = [extra for extra, packages in packages_of_extras().items() if names & packages]
    return preferred if preferred in found else next(iter(found), None)


def possible_packages(module: str) -> set[str]:
    """Names of the package that a module may be of, whether or not that is installed."""
    return {normalise(module), PACKAGES_OF_MODULES.get(module, module)}


@cache
def packages_of_extras() -> dict[str, frozenset[str]]:
    """The packages of each extra, in lower case with -: its own, those of extras that it is made of, and what an extra
    of an installed package adds.
    """
    extras = dict.fromkeys(each.asking for each in _requirements(PRODUCT) if each.asking)
    return {extra: frozenset(packages_of(PRODUCT, extra)) for extra in extras}


def missing_of(extra: str) -> list[str]:
    """Packages of an extra that are not installed, by name."""
    return sorted(package for package in packages_of_extras()[extra] if not is_installed(package))


def is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def packages_of(package: str, extra: str) -> Iterator[str]:
    """The packages that an extra of an installed package brings, by name in lower case with -."""
    for needed, extras, asking in _requirements(package):
        if asking == extra:
            yield from () if needed == PRODUCT else (needed,)
            for each in extras:
                yield from packages_of(needed, each)


def _requirements(package: str) -> Iterator[Requirement]:
    try:
        yield from map(parse_requirement, filter(_is_for_this_python, requires(package) or []))
    except PackageNotFoundError:
        return


def parse_requirement(text: str) -> Requirement:
    """What a line of metadata asks for."""
    found = _REQUIREMENT.match(text)
    assert found, text
    return Requirement(normalise(found[1]), [each.strip() for each in (found[2] or "").split(",")], found[3])


def _is_for_this_python(requirement: str) -> bool:
    bounds = re.findall(r"python_version\s*([<>]=?)\s*['\"](\d+)\.(\d+)", requirement)
    return all(_COMPARISONS[sign](sys.version_info[:2], (int(major), int(minor))) for sign, major, minor in bounds)


def normalise(name: str) -> str:
    """The name of a package in lower case with -, in which packages that are one and the same have one name."""
    return re.sub(r"[-_.]+", "-", name).lower()
