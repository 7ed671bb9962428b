"""A writer of checkpoints that is killed at any moment, and disks that damage what was written."""

import json
from pathlib import Path

import pytest

from tests.chaos.conftest import Note
from tests.helpers import finished, python

pytestmark = pytest.mark.timeout(600)


def test_a_writer_killed_at_every_system_call_leaves_the_newest_whole_checkpoint(tmp_path: Path, note: Note) -> None:
    code, out, error = finished(python("-m", "tests.chaos.checkpoint_killer", tmp_path, "--damages", "40"))
    assert code == 0, error[-3000:]
    tried = json.loads(out)
    assert min(tried["calls"].values()) > 10, "a write is open, write, sync, rename, sync and more"
    assert min(tried["damaged"].values()) > 0, tried
    note("the writer of checkpoints is killed before a system call", times=sum(tried["calls"].values()))
    note("a checkpoint is cut off or changed on the disk", times=sum(tried["damaged"].values()))
