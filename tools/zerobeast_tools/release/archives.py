"""What is in a wheel or an sdist, and what is wrong with that: each fault is a BeastError that names file and cause."""

import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast_tools.release.tree import PACKAGE, digest


class Archive(NamedTuple):
    """The contents of a wheel, or of an sdist below its top folder and `src`."""

    name: str
    files: Mapping[str, str]  #: path -> SHA-256 of the content
    links: Collection[str]  #: paths of what is neither a file nor a folder

    @property
    def product(self) -> dict[str, str]:
        """The files of the package itself."""
        return {path: content for path, content in self.files.items() if path.startswith(f"{PACKAGE}/")}


def read_wheel(path: Path) -> Archive:
    """The contents of a wheel."""
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        links = [member.filename for member in members if stat.S_ISLNK(member.external_attr >> 16)]
        return Archive(path.name, {each.filename: digest(archive.read(each)) for each in members}, links)


def read_sdist(path: Path) -> Archive:
    """The contents of an sdist."""
    files, links = {}, []
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2].removeprefix("src/")
            if content := archive.extractfile(member) if member.isfile() else None:
                files[name] = digest(content.read())
            elif not member.isdir():
                links.append(name)
    return Archive(path.name, files, links)


def check_links(archive: Archive, links: Collection[str]) -> None:
    """Raise BeastError unless every link of the tree is a folder with files here, and there is no link at all."""
    for path in archive.links:
        raise BeastError(f"{archive.name}: {path} is a link, expected a file or a folder with its files")
    for path in links:
        if not any(file.startswith(f"{path}/") for file in archive.files):
            raise BeastError(f"{archive.name}: {path} has no files, expected the folder that this link of the tree is")


def check_product(archive: Archive, expected: Mapping[str, str]) -> None:
    """Raise BeastError unless the package has exactly the files of the tree.

    Args:
      archive: to check.
      expected: path -> SHA-256 of the content.
    """
    found = archive.product
    for path, content in expected.items():
        if path not in found:
            cause = "does package-data in pyproject.toml name it?"
            raise BeastError(f"{archive.name}: {path} is missing, expected every file of the tree but pages: {cause}")
        if found[path] != content:
            raise BeastError(f"{archive.name}: {path} differs from the file of the tree")
    for path in found.keys() - expected.keys():
        if not path.endswith(".md"):
            raise BeastError(f"{archive.name}: {path} is not in the tree, expected nothing else")


def check_cases(archive: Archive) -> None:
    """Raise BeastError if paths differ by case alone: on some systems one would overwrite the other."""
    by_lower = defaultdict[str, set[str]](set)
    for file in archive.files:
        for path in (file, *map(str, Path(file).parents)):
            by_lower[path.lower()].add(path)
    for paths in by_lower.values():
        if len(paths) > 1:
            raise BeastError(f"{archive.name}: {' and '.join(sorted(paths))} differ by case alone")


def check_same(one: Archive, two: Archive, what: str) -> None:
    """Raise BeastError unless two wheels have equal files; `what` says what the second one is."""
    for path in sorted(one.files.keys() | two.files.keys()):
        if path not in two.files:
            raise BeastError(f"{two.name}: {path} is missing in {what}")
        if one.files.get(path) != two.files[path]:
            raise BeastError(f"{two.name}: {path} is another one, or new, in {what}")
