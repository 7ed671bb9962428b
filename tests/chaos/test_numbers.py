"""Numbers that really overflow: an environment pays 1e30 now and then, and a learning rate is absurd."""

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.build.odd import ODD
from tests.chaos.conftest import Note
from tests.chaos.runs import TINY, TO_SEE_S, learned, log, page, seen
from tests.helpers import wait_until
from zerobeast.common.files import run_files
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast.tools.chaos.inject import disturbed_run
from zerobeast.tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(600)

OVERFLOWS = ("--env", ODD, "--env.kwargs", '{"at": 30, "reward": 1e30}', "--impala.reward_clipping", "none")


def looked_at(weights: WeightsSubscriber) -> int:
    """How many versions have arrived, all numbers of which must be finite."""
    count = 0
    while message := weights.receive():
        assert np.isfinite(np.frombuffer(b"".join(message.frames()), np.float32)).all(), message.header
        count += 1
    return count


def saved(fleet: ThrowawayRun) -> dict[str, Any]:
    """The counters of a checkpoint, all numbers of which must be finite."""
    state = load_checkpoint(fleet.config.folder / run_files.CHECKPOINT)
    assert all(bool(value.isfinite().all()) for value in (*tensors(state["model"]), *tensors(state["learning"])))
    counters: dict[str, Any] = state["counters"]
    return counters


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a tree of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from tensors(entry)


def ends_by_itself(fleet: ThrowawayRun, *flags: str) -> int | None:
    """Start the learner with other settings than before, and wait until it ends; returns the exit code."""
    child = fleet.child("learner 0")
    child.spec = replace(child.spec, command=[*child.spec.command, *flags])
    child.start()
    wait_until(lambda: not child.running, TO_SEE_S)
    return child.poll()


def test_non_finite_numbers_are_skipped_or_end_training_and_are_never_published_or_saved(
    tmp_path: Path, context: Context, note: Note
) -> None:
    with disturbed_run([*TINY, *OVERFLOWS], tmp_path) as run:
        watch, fleet = run.watch, run.fleet
        with closing(WeightsSubscriber(context, fleet.learner_endpoint)) as weights:
            seen(watch, lambda: page(fleet, "learner").get("nonfinite_updates", 0) >= 3 and looked_at(weights))
            assert learned(watch, 200), "the others count"
            seen(watch, lambda: saved(fleet)["nonfinite_updates"] >= 3)
            note("a loss is not finite: the update is skipped", times=saved(fleet)["nonfinite_updates"])
            assert watch.refused == {}, "it is finite until it is squared"
            fleet.end(["learner 0"], signal.SIGKILL)
            last = saved(fleet)

            rare = ("--learner.checkpoint_every_s", "1000")
            assert ends_by_itself(fleet, *rare, "--learner.on_nonfinite", "stop") == 1
            note("a loss is not finite: training stops at the last good checkpoint")
            assert "learner: the loss or its gradient was not finite at agent step" in log(fleet, "learner")
            absurd = ("--impala.learning_rate", "3e38", "--learner.on_nonfinite", "skip")
            assert ends_by_itself(fleet, *absurd) == 1
            assert "made weights that overflow" in log(fleet, "learner")
            assert "Traceback" not in log(fleet, "learner")
            looked_at(weights)
            assert saved(fleet) == last, "the last good one"
            note("weights overflow: training stops at the last good checkpoint")
