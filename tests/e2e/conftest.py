"""What a user has: the wheel, in an environment of its own, and images."""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pydantic
import pytest

from tests.helpers import ROOT
from zerobeast_tools.release.tree import copy_sources


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    subprocess.run(command, check=True, timeout=120)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_sources(ROOT, folder)  # leftovers of an earlier build would be packed as well
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has the wheel, and this one's libraries without the repository."""
    venv = tmp_path_factory.mktemp("user") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    pip("--python", venv, "install", "-q", "--no-index", "--no-deps", wheel)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(str(Path(pydantic.__file__).parents[1]))
    return venv


@pytest.fixture(scope="session")
def images() -> None:
    """Build all six images, once: other processes wait, and find them in the cache."""
    from tests.e2e.compose_project import BASE, FUSED, Project  # which looks for a Docker engine

    with (Path(tempfile.gettempdir()) / "zerobeast-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for files in ([BASE], [BASE, FUSED]):
            Project("zerobeast-build", {}, files).compose("--profile", "evaluate", "build")
