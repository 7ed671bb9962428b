"""Packages that only some installations have, and the extra that installs each, as the metadata of ours declare it.

Their home is `project.optional-dependencies` in pyproject.toml.
"""

import operator
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, requires

PRODUCT = "zerobeast"
#: packages of modules whose names differ by more than case and - for _, or that several packages bring
PACKAGES_OF_MODULES = {"PIL": {"pillow"}, "pygame": {"pygame", "pygame-ce"}, "Box2D": {"box2d", "box2d-py"}}
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^]]*)\])?(?:.*extra == ['\"]([\w.-]+)['\"])?")


Requirement = tuple[str, list[str], str | None]  #: a package, its extras, and the extra of another one that asks for it


@contextmanager
def name_extra() -> Iterator[None]:
    """Make the error about a module that is missing tell which extra installs it, if one does."""
    try:
        yield
    except ModuleNotFoundError as error:
        if extra_of(error.name):
            error.msg = how_to_install(error, "train")
        raise


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
    """Names of the package that a module, or one within it, may be of, whether or not that is installed."""
    top = module.partition(".")[0]
    return PACKAGES_OF_MODULES.get(top, {normalise(top)})


@cache
def packages_of_extras() -> dict[str, frozenset[str]]:
    """The packages of each extra, in lower case with -: its own, those of extras that it is made of, and what an extra
    of an installed package adds.
    """
    extras = dict.fromkeys(asking for _, _, asking in _requirements(PRODUCT) if asking)
    return {extra: frozenset(packages_of(PRODUCT, extra)) for extra in extras}


def installed_versions() -> dict[str, str]:
    """The version of each installed package, by name in lower case with -; of several, what Python finds first."""
    return {normalise(each.name): each.version for each in reversed([*distributions()]) if each.name}


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
    """What a line of metadata asks for, the names of packages and of extras in lower case with -."""
    found = _REQUIREMENT.match(text)
    assert found, text
    extras = [normalise(each.strip()) for each in (found[2] or "").split(",")]
    return normalise(found[1]), extras, found[3] and normalise(found[3])


def _is_for_this_python(requirement: str) -> bool:
    bounds = re.findall(r"python_version\s*([<>]=?)\s*['\"](\d+)\.(\d+)", requirement)
    return all(_COMPARISONS[sign](sys.version_info[:2], (int(major), int(minor))) for sign, major, minor in bounds)


def normalise(name: str) -> str:
    """The name of a package in lower case with -, in which packages that are one and the same have one name."""
    return re.sub(r"[-_.]+", "-", name).lower()
