"""A writer of checkpoints that is killed at any moment, and disks that damage what was written."""

import json
import subprocess
import sys
from pathlib import Path

from tests.chaos.conftest import Note
from tests.chaos.runs import ROOT

KILLS = 40


def test_a_writer_killed_at_every_system_call_and_at_random_leaves_the_newest_whole_checkpoint(
    tmp_path: Path, note: Note
) -> None:
    command = [sys.executable, "-m", "tests.chaos.checkpoint_killer", str(tmp_path), "--kills", str(KILLS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    tried = json.loads(ended.stdout)
    assert min(tried["calls"].values()) > 10, "a write is open, write, sync, rename, sync and more"
    assert tried["writes"] >= KILLS
    assert min(tried["damaged"].values()) > 0, tried
    note("the writer of checkpoints is killed before a system call", times=sum(tried["calls"].values()))
    note("the writer of checkpoints is killed at random", times=KILLS)
    note("a checkpoint is cut off or changed on the disk", times=sum(tried["damaged"].values()))
