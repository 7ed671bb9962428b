"""Samples per insert: bounds both ways, and how long each side waits for the other."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.build.learners import ENV, T, answer, rollout_rows, run_config
from tests.build.streams import ListedRun
from tests.build.training import learn, training_run
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.data.pace import Pace
from zerobeast.rl.data.rollouts import Rollouts
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Credit, Learned
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.recorder import PACE_COLUMNS
from zerobeast.services.learner.update import Trainer


@given(ratio=st.floats(0.1, 8.0), min_size=st.integers(1, 20), insert=st.integers(1, 9), sample=st.integers(1, 9))
def test_the_ratio_holds_both_ways_if_samples_come_first(ratio: float, min_size: int, insert: int, sample: int) -> None:
    pace, again = Pace(ratio, min_size), Pace(ratio, min_size)
    for _ in range(100):
        if pace.may_sample(sample):
            pace.sample(sample)
        else:
            pace.insert(insert)
        if pace.filled:
            assert 0 <= (pace.inserted - min_size) * ratio - pace.sampled < sample + insert * ratio + 1e-9
    again.load(pace.state())
    assert again.state() == pace.state()


@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_a_run_that_continues_with_another_ratio_has_it_from_there_on(ratio: float) -> None:
    before, pace = Pace(2.0, 10), Pace(ratio, 20)
    before.insert(1000)
    before.sample(1970)
    pace.load(before.state())
    assert (pace.may_sample(10), pace.may_sample(11)) == (True, False), "what was left of the old one"
    pace.insert(7)
    due = 10 + int(7 * ratio)
    assert (pace.may_sample(due), pace.may_sample(due + 1)) == (True, False)
    again = Pace(ratio, 20)
    again.load(pace.state())
    assert again.may_sample(due)
    assert not again.may_sample(due + 1)


class Paced(OneBatch):
    """Four samples for each insert, in steps of eight."""

    credit: Credit = "after_store"

    def __init__(self) -> None:
        self.pace: Pace = Pace(ratio=4.0, min_size=2)

    @property
    def due(self) -> bool:
        return self.pace.may_sample(8)

    def add(self, rollouts: Rollouts, _agent_steps: int) -> None:
        self.pace.insert(len(rollouts))

    def step(self, _agent_steps: int) -> Learned:
        self.pace.sample(8)
        return answer(1)

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        raise NotImplementedError


def test_a_paced_run_reports_who_waits_and_other_runs_do_not(tmp_path: Any) -> None:
    run = ListedRun({1: 4}, batch=4, window=4)
    run.start(1, SavedLedger())
    run.exchange()
    for _ in range(3):
        run.outboxes[1].push(rollout_rows(4), [], 0.0)
    run.exchange()
    trainer = Trainer(run_config(tmp_path, total_steps=1000 * T), torch.device("cpu"), ENV)
    plain = training_run(trainer, run.intake, lambda: run.now)
    assert plain.meters.page(run.now).keys().isdisjoint(PACE_COLUMNS)
    trainer.learning = Paced()
    trainer.step = lambda: (setattr(run, "now", run.now + 1.0), trainer.learning.step(0))[1]  # type: ignore[method-assign]
    training = training_run(trainer, run.intake, lambda: run.now)
    steps = 0
    while learn(training):
        steps += 1
    training.meters.waited(5.0)
    page = training.page() | training.meters.page(run.now)
    # three batches; one step with the first and two with each of the others; the last batch waits for three of these
    assert steps == 3 + 1 + 2 + 2
    assert (page["samples_per_insert"], page["replay_starved_s"], page["ratio_limited_s"]) == (3.333, 5.0, 3.0)
