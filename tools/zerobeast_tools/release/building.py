"""Builds sdist and wheel from a copy of the tree, the wheel once more from the sdist, and compares all of it."""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast_tools.release import archives
from zerobeast_tools.release.tree import copy_sources, list_links, list_product_files


class Built(NamedTuple):
    """The files to upload."""

    sdist: Path
    wheel: Path


def build(tree: Path, place: Path) -> Built:
    """Build both from a tree, in new folders of `place`, of which `release/dist` has the two files alone."""
    source, out = copy_sources(tree, place), place / "release" / "dist"
    run_module("build", "--no-isolation", "--sdist", "--wheel", "--outdir", str(out), str(source))
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


def rebuild_wheel(sdist: Path, place: Path) -> Path:
    """Build the wheel from an sdist, as those do who do not trust a wheel; returns its path, in `place`.

    Raises:
      BeastError: that failed, or this Python cannot unpack archives safely.
    """
    if not hasattr(tarfile, "data_filter"):
        raise BeastError(f"Python {sys.version.split()[0]} has no filter for archives: expected 3.11.4 or newer")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (source,) = (place / "unpacked").iterdir()
    run_module("build", "--no-isolation", "--wheel", "--outdir", str(place / "rebuilt"), str(source))
    (wheel,) = (place / "rebuilt").glob("*.whl")
    return wheel


def check_contents(tree: Path, version: str, built: Built, rebuilt: Path) -> None:
    """Raise BeastError unless both archives have what the tree has, and wheels from both are equal."""
    wheel, sdist = archives.read_wheel(built.wheel), archives.read_sdist(built.sdist)
    for archive in (wheel, sdist):
        archives.check_identity(archive, version)
        check_archive(tree, archive)
    archives.check_same(wheel, archives.read_wheel(rebuilt), "the wheel that is built from the sdist")


def check_archive(tree: Path, archive: archives.Archive) -> None:
    """Raise BeastError unless an archive has what the tree has, with folders in place of links."""
    archives.check_links(archive, list_links(tree))
    archives.check_cases(archive)
    archives.check_product(archive, list_product_files(tree))


def run_module(module: str, *arguments: str) -> str:
    """Run a module of this environment; returns its output.

    Raises:
      BeastError: it failed.
    """
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise BeastError("\n".join([f"python -m {module} {' '.join(arguments)} failed:", *last]))
    return done.stdout
