"""The sources of the package: a copy without what an earlier build has left, and what has to be in an archive."""

import shutil
from hashlib import sha256
from pathlib import Path

FOLDERS = ("src", "zerobeast", "common", "services")
FILES = ("pyproject.toml", "README.md", "LICENSE")
LEFTOVERS = ("__pycache__", "*.egg-info", "*.pyc")
PAGES = ".md"  #: which are read in the repository alone
PACKAGE = "zerobeast"


def copy_sources(tree: Path, place: Path) -> Path:
    """Copy what the package is built from, links as links; returns the copy, a new folder in `place`."""
    copy = place / "source"
    for name in FOLDERS:
        shutil.copytree(tree / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns(*LEFTOVERS))
    for name in FILES:
        shutil.copy(tree / name, copy)
    return copy


def list_product_files(tree: Path) -> dict[str, str]:
    """Path in the package, such as `zerobeast/cli/main.py` -> SHA-256 of the content; behind links, too."""
    # not rglob, which follows no links
    files = [file for folder in _folders(tree / "src" / PACKAGE) for file in folder.iterdir() if file.is_file()]
    kept = [file for file in files if file.suffix not in (PAGES, ".pyc")]
    return {str(file.relative_to(tree / "src")): digest(file.read_bytes()) for file in kept}


def list_links(tree: Path) -> list[str]:
    """Paths in the package at which the tree has a link to a folder: `zerobeast/common` and so on."""
    folders = _folders(tree / "src" / PACKAGE)
    return [str(folder.relative_to(tree / "src")) for folder in folders if folder.is_symlink()]


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _folders(top: Path) -> list[Path]:
    """A folder and all below it, behind links, too."""
    inner = [each for each in sorted(top.iterdir()) if each.is_dir() and each.name != "__pycache__"]
    return [top, *(found for each in inner for found in _folders(each))]
