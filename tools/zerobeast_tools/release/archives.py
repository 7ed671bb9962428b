"""What is in a wheel or an sdist, and what is wrong with that: each fault is a BeastError that names file and cause."""

import re
import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast_tools.release.tree import FILES, PACKAGE, digest

#: paths of metadata, and of all that may stand beside the package
METADATA = re.compile(rf"{PACKAGE}-[^/]+\.dist-info/METADATA|PKG-INFO")
BESIDE = {
    "wheel": re.compile(rf"{PACKAGE}-[^/]+\.dist-info/"),
    "sdist": re.compile(rf"({'|'.join(map(re.escape, FILES))}|PKG-INFO|setup\.cfg)$|{PACKAGE}\.egg-info/"),
}


class Archive(NamedTuple):
    """The contents of a wheel, or of an sdist below its top folder and `src`."""

    name: str
    files: Mapping[str, str]  #: path -> SHA-256 of the content
    links: Collection[str]  #: paths of what is neither a file nor a folder
    strangers: Collection[str]  #: paths that are neither of the package nor metadata
    identity: tuple[str, str]  #: name and version in its metadata

    @property
    def product(self) -> dict[str, str]:
        """The files of the package itself."""
        return {path: content for path, content in self.files.items() if path.startswith(f"{PACKAGE}/")}


def read_wheel(path: Path) -> Archive:
    """The contents of a wheel. Raises BeastError if a path is there twice, or there are no metadata."""
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        links = [member.filename for member in members if stat.S_ISLNK(member.external_attr >> 16)]
        return _make(path, "wheel", ((each.filename, archive.read(each)) for each in members), links)


def read_sdist(path: Path) -> Archive:
    """The contents of an sdist. Raises BeastError if a path is there twice, or there are no metadata."""
    files, links = [], []
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2].removeprefix("src/")
            if content := archive.extractfile(member) if member.isfile() else None:
                files.append((name, content.read()))
            elif not member.isdir():
                links.append(name)
    return _make(path, "sdist", files, links)


def _make(path: Path, kind: str, contents: Iterable[tuple[str, bytes]], links: Collection[str]) -> Archive:
    files: dict[str, str] = {}
    metadata = b""
    for name, content in contents:
        if name in files:
            raise BeastError(f"{path.name}: {name} is there twice, expected once")
        files[name] = digest(content)
        metadata = content if METADATA.fullmatch(name) else metadata
    strangers = [name for name in files if not name.startswith(f"{PACKAGE}/") and not BESIDE[kind].match(name)]
    fields = message_from_bytes(metadata)
    return Archive(path.name, files, links, strangers, (str(fields["Name"]), str(fields["Version"])))


def check_identity(archive: Archive, version: str) -> None:
    """Raise BeastError unless an archive is of the package, in this version."""
    if archive.identity != (PACKAGE, version):
        found = " ".join(archive.identity)
        raise BeastError(f"{archive.name}: its metadata name {found}, expected {PACKAGE} {version}")


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
    for path in (*archive.strangers, *(found.keys() - expected.keys())):
        if path in archive.strangers or not path.endswith(".md"):
            raise BeastError(f"{archive.name}: {path} is not of the tree's package, expected nothing else")


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
