"""`make release-check`: archives as they should be pass, and each planted fault is named in one sentence."""

import io
import itertools
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.helpers import ROOT
from zerobeast.common.errors import BeastError
from zerobeast.common.extras import normalise
from zerobeast_tools.release import archives, building, first_page
from zerobeast_tools.release.archives import Archive
from zerobeast_tools.release.imports import check_imports
from zerobeast_tools.release.tree import copy_sources, list_product_files
from zerobeast_tools.release.version import check_version

Files = dict[str, bytes]
METADATA = "zerobeast-1.2.0.dist-info/METADATA"
NEEDS = (
    b"Name: zerobeast\nVersion: 1.2.0\nRequires-Dist: numpy>=2\nRequires-Dist: gymnasium[atari]; extra == 'envserver'\n"
)
OPTIONAL = b"try:\n    import absent\nexcept ImportError:\n    absent = None\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of a few files, with a link as ours has."""
    tree = tmp_path / "tree"
    for name in ("pyproject.toml", "README.md", "LICENSE", "services/__init__.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "zerobeast").mkdir()
    (tree / "zerobeast" / "version.py").write_text('__version__ = "1.2.0"\n')
    (tree / "zerobeast" / "presets.yaml").write_text("a: 1\n")
    (tree / "zerobeast" / "README.md").write_text("a page")
    (tree / "common").mkdir()
    (tree / "common" / "text.py").write_text("import re, numpy, ale_py\n")
    (tree / "zerobeast" / "common").symlink_to("../common")
    (tree / "src").mkdir()
    (tree / "src" / "zerobeast").symlink_to("../zerobeast")
    (tree / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.0] - 2027-01-01\n\n## [1.1.0] - 2026-01-01\n")
    return tree


def contents(tree: Path) -> Files:
    """What an archive of the tree has to have."""
    return {name: (tree / "src" / name).read_bytes() for name in list_product_files(tree)} | {METADATA: NEEDS}


def make_wheel(place: Path, files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> Path:
    with zipfile.ZipFile(place / "one.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for name, target in (links or {}).items():
            (link := zipfile.ZipInfo(name)).external_attr = 0o120777 << 16
            archive.writestr(link, target)
    return place / "one.whl"


def make_sdist(place: Path, files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> Path:
    with tarfile.open(place / "one.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            inner = "PKG-INFO" if name == METADATA else f"src/{name}"
            (member := tarfile.TarInfo(f"zerobeast-1/{inner}")).size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            (member := tarfile.TarInfo(f"zerobeast-1/src/{name}")).type = tarfile.SYMTYPE
            member.linkname = target
            archive.addfile(member)
    return place / "one.tar.gz"


def test_what_is_as_the_tree_passes(tree: Path, tmp_path: Path) -> None:
    wheel, sdist = make_wheel(tmp_path, contents(tree)), make_sdist(tmp_path, contents(tree))
    building.check_contents(tree, "1.2.0", building.Built(sdist, wheel), wheel)
    check_imports(wheel)
    assert check_version(tree) == check_version(tree, "v1.2.0") == "1.2.0"


KINDS: list[tuple[Callable[..., Path], Callable[[Path], Archive]]] = [
    (make_wheel, archives.read_wheel),
    (make_sdist, archives.read_sdist),
]


@pytest.mark.parametrize(("make", "read"), KINDS)
@pytest.mark.parametrize(
    ("drop", "add", "links", "named"),
    [
        ("zerobeast/presets.yaml", {}, {}, "zerobeast/presets.yaml"),
        ("", {"zerobeast/presets.yaml": b"a: 2\n"}, {}, "zerobeast/presets.yaml"),
        ("", {"zerobeast/left.py": b""}, {}, "zerobeast/left.py"),
        ("", {"zerobeast/Version.py": b""}, {}, "zerobeast/Version.py"),
        ("", {"tests/__init__.py": b""}, {}, "tests/__init__.py"),
        ("", {"zerobeast-1.2.0.data/scripts/other": b""}, {}, "zerobeast-1.2.0.data/scripts/other"),
        ("", {"zerobeast/Common/text.py": b""}, {}, "zerobeast/Common"),
        ("zerobeast/common/text.py", {}, {}, "zerobeast/common"),
        ("zerobeast/common/text.py", {}, {"zerobeast/common": "../common"}, "zerobeast/common"),
        ("zerobeast/common/text.py", {}, {"zerobeast/common/text.py": "../x"}, "zerobeast/common/text.py"),
    ],
)
def test_a_fault_in_an_archive_is_named(
    make: Callable[..., Path],
    read: Callable[[Path], Archive],
    drop: str,
    add: Files,
    links: dict[str, str],
    named: str,
    tree: Path,
    tmp_path: Path,
) -> None:
    files = {name: content for name, content in (contents(tree) | add).items() if name != drop}
    archive = read(make(tmp_path, files, links))
    with pytest.raises(BeastError) as caught:
        building.check_archive(tree, archive)
    assert archive.name in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("make", "read"), KINDS)
@pytest.mark.parametrize("metadata", [b"Name: zerobeast\nVersion: 9.9.9\n", b"Name: other\nVersion: 1.2.0\n", b""])
def test_metadata_of_another_package_or_version_are_named(
    make: Callable[..., Path], read: Callable[[Path], Archive], metadata: bytes, tree: Path, tmp_path: Path
) -> None:
    archive = read(make(tmp_path, contents(tree) | {METADATA: metadata}))
    with pytest.raises(BeastError, match=r"expected zerobeast 1\.2\.0$"):
        archives.check_identity(archive, "1.2.0")


def test_a_path_that_is_there_twice_is_named(tree: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, contents(tree))
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("zerobeast/version.py", b"__version__ = '9'\n")
    with pytest.raises(BeastError, match=r"zerobeast/version\.py is there twice"):
        archives.read_wheel(wheel)


@pytest.mark.parametrize("change", [{"zerobeast/a.py": b"1"}, {METADATA: b"Name: other\n"}])
def test_a_wheel_from_the_sdist_that_differs_is_named(change: Files, tree: Path, tmp_path: Path) -> None:
    one = archives.read_wheel(make_wheel(tmp_path, contents(tree)))
    two = archives.read_wheel(make_wheel(tmp_path, contents(tree) | change))
    for pair in ((one, two), (two, one)):
        with pytest.raises(BeastError) as caught:
            archives.check_same(*pair, "the wheel from the sdist")
        assert next(iter(change)) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"import secretly.used\n", "secretly"),
        (b"def f():\n    from torch import nn\n", "torch"),
        (OPTIONAL, None),
        (OPTIONAL + b"def f():\n    import absent\n", None),
        (b"with suppress(ImportError):\n    import absent\n", None),
        (b"try:\n    import absent\nexcept ValueError:\n    pass\n", "absent"),
        (b"from . import text\nimport zerobeast.common\n", None),
        (b"try:\n    import tomllib\nexcept ImportError:\n    import absent\n", "absent"),
        (b"try:\n    import absent\nexcept ImportError as error:\n    raise RuntimeError from error\n", "absent"),
        (b"with raise_as(OSError, 'x', ModuleNotFoundError):\n    import absent\n", "absent"),
        (b"from importlib import import_module\nimport_module('absent.part')\n", "absent"),
    ],
)
def test_an_import_that_is_not_declared_is_named(text: bytes, named: str | None, tree: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, contents(tree) | {"zerobeast/new.py": text})
    if named is None:
        check_imports(wheel)
        return
    with pytest.raises(BeastError) as caught:
        check_imports(wheel)
    assert f": {named} is" in str(caught.value)
    assert "zerobeast/new.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "tag", "named"),
    [
        ("CITATION.cff", "cff-version: 1.2.0\nversion: 1.1.0\n", "", "CITATION.cff"),
        ("CITATION.cff", "cff-version: 1.2.0\n", "", "CITATION.cff"),
        ("CHANGELOG.md", "## [1.3.0]\n\n## [1.2.0]\n", "", "CHANGELOG.md"),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [1.2.0]\n", "v1.2.0", "CHANGELOG.md"),
        ("README.md", "", "v1.3.0", "v1.3.0"),
    ],
)
def test_a_version_that_differs_is_named(file: str, text: str, tag: str, named: str, tree: Path) -> None:
    (tree / file).write_text(text)
    with pytest.raises(BeastError) as caught:
        check_version(tree, tag)
    assert named in str(caught.value)


def test_unreleased_changes_may_come_first_until_there_is_a_tag(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.1.0]\n")
    assert check_version(tree) == "1.2.0"


def test_a_copy_of_the_sources_keeps_links_and_leaves_leftovers(tree: Path, tmp_path: Path) -> None:
    for left in ("common/__pycache__/text.pyc", "src/zerobeast.egg-info/SOURCES.txt"):
        (tree / left).parent.mkdir(exist_ok=True)
        (tree / left).touch()
    copy = copy_sources(tree, tmp_path)
    assert (copy / "zerobeast" / "common").is_symlink()
    assert list_product_files(copy) == list_product_files(tree)
    assert not [*copy.rglob("*.egg-info"), *copy.rglob("__pycache__")]
    shutil.rmtree(tree / "zerobeast")
    with pytest.raises(FileNotFoundError):
        list_product_files(tree)


def test_this_repository_agrees_on_its_version_and_has_lines_to_follow() -> None:
    assert check_version(ROOT)
    readme = (ROOT / "README.md").read_text()
    commands = [*first_page.list_commands(readme)]
    assert {"train", "plot", "record", "evaluate", "export", "sweep", "doctor"} <= {each[1] for each in commands}
    for broken in ("", readme.replace("total_steps=100_000", "total_steps=5")):
        with pytest.raises(BeastError):
            [*first_page.list_commands(broken)]


def test_a_program_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(BeastError) as caught:
        first_page.run_program(Path("/bin/sh"), ["-c", "echo no room; exit 3"], tmp_path)
    assert "no room" in str(caught.value)


def test_hashes_are_of_the_tested_versions() -> None:
    pins, hashed = (
        {normalise(line.split()[0]) for line in (ROOT / name).read_text().splitlines() if "==" in line}
        for name in ("constraints.txt", "requirements.txt")
    )
    assert len(hashed) > 100
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert all("--hash=sha256:" in after for line, after in itertools.pairwise(lines) if "==" in line)
    assert {pin.partition("==")[0] for pin in pins ^ hashed} == {"torch"}
