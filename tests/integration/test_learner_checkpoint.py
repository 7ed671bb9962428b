"""A learner that is killed while it writes a checkpoint leaves one that can be read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from services.learner.checkpoint import load_checkpoint
from tests.helpers import wait_until

pytestmark = pytest.mark.integration

WRITER = """
import itertools, sys
import torch
from pathlib import Path
from services.learner.checkpoint import CHECKPOINT_FORMAT, save_checkpoint
entries = dict.fromkeys(("learning", "counters", "config", "env", "policy", "rng", "statistics"), {})
for number in itertools.count():
    model = {"w": torch.full((300_000,), float(number))}
    save_checkpoint(Path(sys.argv[1]), {"format": CHECKPOINT_FORMAT, "model": model, "number": number, **entries})
"""


@pytest.mark.parametrize("replacements", [1, 4, 17])
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path, replacements: int) -> None:
    path = tmp_path / "checkpoint.pt"
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env=environment)
    try:
        wait_until(path.exists, timeout_s=60)
        for _ in range(replacements):
            wait_for_another_file(path)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    state = load_checkpoint(path)
    assert state is not None
    assert state["number"] > 0
    assert torch.equal(state["model"]["w"], torch.full((300_000,), float(state["number"])))


def wait_for_another_file(path: Path) -> None:
    before = path.stat().st_mtime_ns
    wait_until(lambda: path.stat().st_mtime_ns != before)
