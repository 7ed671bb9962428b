"""The folder for sockets: who may enter it, and that it is removed after its process, even a killed one."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.helpers import python
from zerobeast.launcher import private_folder as private
from zerobeast.launcher.private_folder import private_folder, remove_abandoned

OWNER = """
import sys
from zerobeast.launcher.private_folder import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("p")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(private, "SHORT_PLACE", str(folder))
    return folder


def owner() -> tuple[subprocess.Popen[str], Path]:
    process = python("-c", OWNER, stdin=subprocess.PIPE)
    return process, Path(process.stdout.readline().strip())


def test_the_folder_is_closed_to_others_and_gone_afterwards(place: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "socket").touch()
    assert not folder.exists()
    foreign = place / "beast-foreign"
    foreign.mkdir()
    (place / "beast-link").symlink_to(foreign)
    remove_abandoned(place)
    assert foreign.exists(), "which is of another user"


def test_the_next_process_removes_the_folder_of_a_killed_one_and_not_that_of_a_living_one(place: Path) -> None:
    killed, abandoned = owner()
    living, kept = owner()
    killed.kill()
    killed.communicate()
    assert abandoned.exists()
    with private_folder():
        assert not abandoned.exists()
        assert kept.exists()
    living.communicate()
    assert living.returncode == 0
    assert list(place.iterdir()) == []
