"""A run with an episodic memory whose signal is a function of one's own: its memory outlives a kill."""

from pathlib import Path

import psutil
import pytest
import torch

from tests.build.commands import beast, rows_of, train
from tests.helpers import ROOT, killed_at_last, wait_until

pytestmark = pytest.mark.timeout(300)

SIGNAL = ROOT / "tests" / "build" / "parts.py"


def remembered(folder: Path) -> int:
    """How many entries the learner holds, by the checkpoint; 0 if there is none."""
    path = folder / "checkpoint.pt"
    state = torch.load(path, weights_only=True)["learning"]["episodic_memory"] if path.exists() else {}
    return len(state["remembered"].get("priorities", ())) if state else 0


def test_its_memory_outlives_a_kill(tmp_path: Path) -> None:
    run = tmp_path / "gw"
    memory = ("--net.memory", f"{SIGNAL}:newest")  # given again below: config.yaml alone may not import it
    flags = "--env zipf/Gridworld-small --algo impala --net.use_lstm true --memory.familiar 128"
    flags += " --memory.replay_share 0.1 --total_steps 1000000 --learner.checkpoint_every_s 2"
    where = ("--plain", "--root", tmp_path, "--name", "gw", "--local.workers", "1")
    process = beast("train", *where, *flags.split(), *memory)
    with killed_at_last(process):
        wait_until(lambda: remembered(run), 120)
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
        process.communicate()
    before, lines = remembered(run), rows_of(run)
    further = str(int(torch.load(run / "checkpoint.pt", weights_only=True)["counters"]["agent_steps"]) + 20_000)
    rows = train(run, *memory, "--total_steps", further)
    assert float(rows[len(lines)]["memory_entries"]) >= before > 0, "the first row after the kill"
