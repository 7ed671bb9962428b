"""A writer of checkpoints that is killed at any moment."""

import json
from pathlib import Path

import pytest

from tests.chaos.conftest import Note
from tests.helpers import python, wait_for_end

pytestmark = pytest.mark.timeout(600)


def test_a_writer_killed_at_every_system_call_leaves_the_newest_whole_checkpoint(tmp_path: Path, note: Note) -> None:
    code, out, error = wait_for_end(python("-m", "tests.chaos.checkpoint_killer", tmp_path))
    assert code == 0, error[-3000:]
    calls = json.loads(out).values()
    assert min(calls) > 10, "a write is open, write, sync, rename, sync and more"
    note("the writer of checkpoints is killed before a system call", times=sum(calls))
