"""Writers of checkpoints and of replays that are killed at any moment, and disks that damage what was written."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import Note
from tests.helpers import finished, python

pytestmark = pytest.mark.timeout(600)


def tried(module: str, folder: Path, *flags: str) -> Any:
    """What a killer has done; it fails if anything was wrong with what it found."""
    code, out, error = finished(python("-m", f"tests.chaos.{module}", folder, *flags))
    assert code == 0, error[-3000:]
    return json.loads(out)


def test_a_writer_killed_at_every_system_call_leaves_the_newest_whole_checkpoint(tmp_path: Path, note: Note) -> None:
    seen = tried("checkpoint_killer", tmp_path, "--damages", "40")
    assert min(seen["calls"].values()) > 10, "a write is open, write, sync, rename, sync and more"
    assert min(seen["damaged"].values()) > 0, seen
    note("the writer of checkpoints is killed before a system call", times=sum(seen["calls"].values()))
    note("a checkpoint is cut off or changed on the disk", times=sum(seen["damaged"].values()))


@pytest.mark.parametrize(("kills", "how"), [(120, []), (60, ["--zstd"])], ids=["raw", "zstd"])
def test_every_row_that_was_inserted_into_a_replay_outlives_a_kill_at_any_moment(
    tmp_path: Path, note: Note, kills: int, how: list[str]
) -> None:
    seen = tried("replay_killer", tmp_path, "--kills", str(kills), *how)
    assert min(seen[what] for what in ("messages", "in the middle of a row", "in the middle of a message")) > 0
    note("the learner is killed while it inserts into a replay", times=kills)
