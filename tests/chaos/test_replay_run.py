"""The learner of an algorithm with a replay is killed: the next one has every stored rollout, exactly once."""

import signal
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.chaos.runs import TINY, TO_SEE_S, closes, wait_for_learning
from zerobeast.common.files import run_files
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast.services.learner.update import Trainer
from zerobeast_tools.chaos.inject import FaultInjector, disturbed_run

pytestmark = pytest.mark.timeout(600)

SIZE = 200_000  #: steps; enough for all that are stored to stay in the file
RUNS = {
    "dqn": ("--algo", "dqn", "--dqn.replay_size", str(SIZE), "--dqn.priority_exponent", "0.6"),
    "r2d2": ("--algo", "r2d2", "--r2d2.replay_size", str(SIZE), "--r2d2.burn_in", "5", "--net.core_width", "8"),
}
SELDOM = ("--learner.checkpoint_every_s", "3")  #: so that a kill leaves rollouts that no checkpoint knows
T, PAGE = 5, 4096


def content(file: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Headers [n, 8] of the rollouts in the file by insert number, and priorities [n, T], as its format places them."""
    capacity = struct.unpack_from("<8s4q", file.read_bytes()[:PAGE])[2]
    headers = np.fromfile(file, np.int64, capacity * 8, offset=PAGE).reshape(capacity, 8)
    at = PAGE + -(-capacity * 64 // PAGE) * PAGE
    priorities = np.fromfile(file, np.float32, capacity * T, offset=at).reshape(capacity, T)
    slots = np.flatnonzero(headers[:, 0])
    slots = slots[headers[slots, 0].argsort()]
    return headers[slots], priorities[slots]


def of_ledger(streams: list[list[int]]) -> Counter[tuple[int, int, int, int]]:
    """Origins of all rows that the streams of a ledger count as used up, each once.

    A learner that was killed between two rows of a message leaves batches that begin within one, so that the last
    batch of a run may end within another.
    """
    return Counter(
        (sender, slot, seq, row)
        for sender, slot, rows, consumed, begun in streams
        for seq in range(1, consumed + 2)
        for row in range(rows if seq <= consumed else begun)
    )


def restored(config: RunConfig) -> tuple[Trainer, dict[str, Any]]:
    """The trainer and the checkpoint that the next learner would begin with."""
    path = config.folder / run_files.CHECKPOINT
    saved = load_checkpoint(path)
    assert saved is not None
    trainer = Trainer(config, torch.device("cpu"), EnvSpec.from_wire(saved["env"]))
    trainer.load(path, saved)
    return trainer, saved


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultInjector]:
    with disturbed_run([*TINY, *SELDOM, *RUNS[request.param]], tmp_path) as injector:
        yield injector


def test_every_rollout_is_stored_once_and_the_next_learner_has_it(run: FaultInjector) -> None:
    config, fleet, watch = run.fleet.config, run.fleet, run.watch
    file, checkpoint = config.store / "replay", config.folder / run_files.CHECKPOINT
    unknown = 0
    for _ in range(2):
        assert watch.until(time.monotonic() + TO_SEE_S, checkpoint.exists)
        assert wait_for_learning(watch, 300)
        fleet.end(["learner 0"], signal.SIGKILL)
        watch.forget("learner 0")
        stored, (_, saved) = len(content(file)[0]), restored(config)
        known = saved["counters"]["agent_steps"]
        unknown += stored - known // T
        fleet.restart("learner 0")
        assert watch.until(time.monotonic() + TO_SEE_S, lambda: "learner 0" in watch.ready)
        assert watch.audit.steps >= stored * T >= known
    assert unknown > 0
    assert wait_for_learning(watch, 100)
    balance = closes(watch)
    assert balance.dropped == {}
    assert set(fleet.retire().values()) == {0}

    rows, priorities = content(file)
    assert rows[:, 0].tolist() == list(range(1, len(rows) + 1))
    assert len(np.unique(priorities[priorities > 0])) > 10
    trainer, saved = restored(fleet.config)
    there = Counter(tuple(origin) for origin in rows[:, 1:5].tolist())
    assert there == of_ledger(saved["rollouts"]["streams"]), "each of the rollouts 1 to n of every stream, once"
    assert saved["rollouts"]["ledger"]["used"] == len(rows) >= balance.used
    assert trainer.counters.agent_steps == saved["learning"]["pace"]["inserted"] == len(rows) * T
    assert list(trainer.recover_rows()) == []
    assert trainer.step().steps > 0
