"""Whether the version is the same wherever it is written."""

import re
import runpy
from pathlib import Path

from zerobeast.common.errors import BeastError

UNRELEASED = "Unreleased"


def check_version(tree: Path, tag: str = "") -> str:
    """The version of a tree.

    Args:
      tree: the repository.
      tag: of the release, such as v0.1.0; empty: none is made yet, so the changelog may be of what is unreleased.

    Raises:
      BeastError: a file or the tag has another version.
    """
    version = str(runpy.run_path(str(tree / "zerobeast" / "version.py"))["__version__"])
    heads = re.findall(r"^## \[(.+?)\]", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: *(.+)$", (tree / "CITATION.cff").read_text(), re.MULTILINE)
    _check("CITATION.cff: version", cited and cited[1].strip(), version)
    if tag or heads[:1] != [UNRELEASED]:
        _check("CHANGELOG.md: the newest version", next(iter(heads), None), version)
    if tag:
        _check("the tag", tag, f"v{version}")
    return version


def _check(what: str, found: str | None, expected: str) -> None:
    if found != expected:
        raise BeastError(f"{what} is {found or 'missing'}, expected {expected}, that of zerobeast/version.py")
