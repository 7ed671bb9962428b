"""Files that survive a full disk and a loss of power."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import no_file_longer_than
from zerobeast.common.config.load import dump, load_config
from zerobeast.common.errors import ConfigError, DiskError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.atomic import Journal, explain_os_errors, write_atomically
from zerobeast.common.transport import make_keys
from zerobeast.plan import run_folder
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.recorder import Recorder

ROW = {"agent_steps": 1, "env": "x", "level": "", "mean_return": 1.0, "returns": [1.0], "lengths": [1]}
TABLE = "agent_steps,episodes\n1,1\n5,2\n"


class Disk:
    """What would be left if the machine lost its power now: a renamed file is empty unless it was synced before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.empty: set[str] = set()
        self.unnamed: set[Path] = set()  #: folders whose names are not on the disk
        self._synced: set[int] = set()
        replace, fsync = Path.replace, os.fsync

        def synced(handle: int) -> None:
            fsync(handle)
            self._synced.add(os.fstat(handle).st_ino)
            self.unnamed.discard(Path(os.readlink(f"/proc/self/fd/{handle}")))

        def replaced(path: Path, target: Path) -> Path:
            if path.stat().st_ino not in self._synced:
                self.empty.add(target.name)
            self.unnamed.add(target.parent)
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", replaced)


def continued(folder: Path) -> None:
    for name in (run_files.METRICS, run_files.EPISODES):
        (folder / name).write_text(TABLE)
    Recorder(folder, 1).close()


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_atomically(folder / run_files.CONFIG, dump(load_config([], {})), durable=True),
        lambda folder: evaluations.append_evaluations(folder, [ROW]),
        lambda folder: Checkpoints(folder).save({"model": torch.zeros(1)}),
        continued,
        lambda folder: make_keys(folder / "keys"),
    ],
    ids=["settings", "evaluations", "checkpoint", "metrics", "keys"],
)
def test_what_is_needed_again_survives_a_loss_of_power_and_names_wait_for_no_disk(
    write: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write(tmp_path)
    assert not disk.empty
    assert not [place for place in disk.unnamed if not place.is_relative_to(tmp_path / "keys")], "keys are made once"
    run_folder.name_latest(tmp_path / "run")
    assert disk.empty == {run_files.LATEST_FILE}


@pytest.mark.parametrize("room", [0, 99])
def test_an_entry_that_does_not_fit_leaves_nothing_and_the_next_one_follows(tmp_path: Path, room: int) -> None:
    journal = Journal(tmp_path / "j")
    journal.write(b"a" * 10)
    with no_file_longer_than(10 + room), pytest.raises(OSError, match="large"):
        journal.write(b"b" * 100)
    assert (tmp_path / "j").read_bytes() == b"a" * 10
    journal.close()
    journal = Journal(tmp_path / "j")
    assert journal.size == 10
    journal.write(b"c" * 100)
    journal.close()
    assert (tmp_path / "j").read_bytes() == b"a" * 10 + b"c" * 100


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_run_needs_no_sync_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) or content == "newer":
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    content = "new"
    write_atomically(tmp_path / "x", content, durable=True)
    content = "newer"
    with pytest.raises(ConfigError):
        write_atomically(tmp_path / "x", content, durable=True)
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 75), (errno.EMFILE, 75), (errno.EACCES, 2)])
def test_a_disk_in_trouble_is_worth_another_try_and_a_wrong_path_is_not(number: int, code: int) -> None:
    with pytest.raises(ConfigError) as caught, explain_os_errors("x cannot be written"):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == code
    assert isinstance(caught.value, DiskError) == (code == 75)
