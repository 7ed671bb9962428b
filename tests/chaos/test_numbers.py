"""Numbers that really overflow are never saved: an environment pays 1e30 now and then, a learning rate is absurd."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.odd import ODD
from tests.chaos.conftest import Note
from tests.chaos.runs import TINY, TO_SEE_S, page, wait_for, wait_for_learning
from tests.helpers import wait_until
from zerobeast.common.files import run_files
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast_tools.chaos.inject import disturbed_run
from zerobeast_tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(600)

OVERFLOWS = ("--env", ODD, "--env.kwargs", '{"at": 30, "reward": 1e30}', "--impala.reward_clipping", "none")
ABSURD = ("--impala.learning_rate", "3e38", "--learner.checkpoint_every_s", "1000")


def saved(fleet: ThrowawayRun) -> dict[str, Any]:
    """The counters of a checkpoint, all numbers of which must be finite."""
    state = load_checkpoint(fleet.config.folder / run_files.CHECKPOINT)
    assert state is not None
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


def test_an_update_that_is_not_finite_is_skipped_or_ends_training_and_never_saved(tmp_path: Path, note: Note) -> None:
    with disturbed_run([*TINY, *OVERFLOWS], tmp_path) as run:
        watch, fleet = run.watch, run.fleet
        wait_for(watch, lambda: page(fleet, "learner").get("nonfinite_updates", 0) >= 3)
        assert wait_for_learning(watch, 200), "the others count"
        wait_for(watch, lambda: saved(fleet)["nonfinite_updates"] >= 3)
        note("a loss is not finite: the update is skipped", times=3)
        assert watch.refused == {}, "it is finite until it is squared"
        fleet.end(["learner 0"], signal.SIGKILL)
        last, child = saved(fleet), fleet.child("learner 0")
        child.spec = replace(child.spec, command=[*child.spec.command, *ABSURD])
        child.start()
        wait_until(lambda: not child.running, TO_SEE_S)
        assert child.poll() == 1
        assert "Traceback" not in child.spec.log.read_text()
        assert saved(fleet) == last, "the last good one"
        note("weights overflow: training stops at the last good checkpoint")
