"""A run with an episodic memory whose signal is a function of one's own: it learns, and its memory outlives a kill."""

from pathlib import Path

import psutil
import pytest
import torch

from tests.e2e.test_learning import beast_train, best, rows_of, train
from tests.helpers import killed_at_last, wait_until

pytestmark = pytest.mark.timeout(300)

GRIDWORLD = "--env zipf/Gridworld-small --algo impala --net.use_lstm true --memory.familiar 128"
SIGNAL = Path(__file__).with_name("rare_signal.py")


def remembered(folder: Path) -> int:
    """How many entries the learner holds, by the checkpoint; 0 if there is none."""
    path = folder / "checkpoint.pt"
    state = torch.load(path, weights_only=True)["learning"]["episodic_memory"] if path.exists() else {}
    return len(state["remembered"].get("priorities", ())) if state else 0


def test_a_gridworld_is_learned_and_its_memory_outlives_a_kill(tmp_path: Path) -> None:
    memory = ("--net.memory", f"{SIGNAL}:newest")  # given again below: config.yaml alone may not import it
    flags = f"{GRIDWORLD} --memory.replay_share 0.1 --total_steps 200000 --learner.checkpoint_every_s 2".split()
    process = beast_train(tmp_path, "gw", *flags, *memory)
    with killed_at_last(process):
        wait_until(lambda: remembered(tmp_path / "gw"), 120)
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
    before, lines = remembered(tmp_path / "gw"), len(rows_of(tmp_path, "gw"))
    rows = train(tmp_path, "gw", *memory)
    assert float(rows[lines]["memory_entries"]) >= before > 0, "the first row after the kill"
    entries = [row["memory_entries"] for row in rows if row["memory_entries"]]  # empty if nothing was learned since
    assert float(entries[-1]) == 512
    assert best(rows) >= 0.3, "a random policy is at 0.15"
