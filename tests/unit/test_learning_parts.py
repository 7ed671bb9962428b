"""Parts of learning: batches that are used again, the pace, targets that follow, and multipliers."""

from collections import Counter
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.build.learners import ENV, T, answer, rollout_rows, run_config
from tests.build.streams import ListedRun, learn, training_run
from zerobeast.rl.data import Batch, Pace, Rollouts
from zerobeast.rl.learning.circular import Circular
from zerobeast.rl.learning.dual import FLOOR, Dual
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.learning.target import Target
from zerobeast.rl.protocol import Credit, Learned
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.update import Trainer

circular_of = partial(Circular, device=torch.device("cpu"))


class Numbered(int):
    """A batch that is nothing but its number, also in a checkpoint."""

    def _asdict(self) -> int:
        return self


ARRIVALS = [Numbered(arrival) for arrival in range(40)]


@pytest.mark.parametrize("uses", [1, 2, 5, 20])
@pytest.mark.parametrize("batches", [1, 4, 7])
def test_every_batch_is_used_as_often_as_it_may_be_and_held_no_longer_than_n_arrivals(batches: int, uses: int) -> None:
    circular, count = circular_of(batches, uses), Counter[int]()
    for arrival in ARRIVALS:
        due = circular.add(arrival)
        count.update(due)
        assert arrival in due, "a new batch is learned from at once"
        assert due == sorted(due), "oldest first"
        assert set(due) <= set(circular.held)
        assert list(circular.held) == list(range(arrival, arrival - len(circular.held), -1)), "the oldest went first"
        assert len(circular.held) <= batches
        assert len(due) <= uses
        assert len(due) == uses or arrival < batches - 1
    assert {count[batch] for batch in ARRIVALS if batch not in circular.held} == {uses}
    assert {batch for batch in circular.held if count[batch] < uses} == set(circular.state())
    assert max(count.values()) == uses


@pytest.mark.parametrize(
    ("batches", "uses", "due"),
    [(4, 2, [7, 9]), (4, 4, [6, 7, 8, 9]), (2, 4, [8, 8, 9, 9]), (3, 4, [7, 8, 9, 9]), (4, 3, [7, 8, 9])],
)
def test_uses_are_spread_evenly(batches: int, uses: int, due: list[int]) -> None:
    circular = circular_of(batches, uses)
    assert [circular.add(arrival) for arrival in ARRIVALS[:10]][-1] == due


@pytest.mark.parametrize(("period", "tau"), [(1, 0.25), (3, 0.25), (3, 1.0)])
def test_the_copy_moves_by_its_rate_towards_the_source_after_exactly_a_period(period: int, tau: float) -> None:
    net = nn.BatchNorm1d(1).double()
    target = Target(source=net, copy=deepcopy(net), period=period, tau=tau)
    written = 1.0
    for weight in (5.0, 9.0, -3.0):
        with torch.no_grad():
            net.weight.fill_(weight)
            net.running_mean.fill_(weight)  # type: ignore[union-attr]
            net.num_batches_tracked += 1  # type: ignore[operator]
        assert [target.count() for _ in range(period)] == [False] * (period - 1) + [True]
        written = tau * weight + (1 - tau) * written
        assert target.copy.weight.item() == written
        assert target.copy.running_mean.item() == weight, "statistics are no weights"  # type: ignore[union-attr]
    assert int(target.copy.num_batches_tracked) == 3  # type: ignore[arg-type]


def test_the_penalty_moves_what_is_measured_and_the_loss_moves_the_multiplier() -> None:
    dual = Dual(initial=2.0, limit=0.25).double()
    measured = torch.tensor(0.75, dtype=torch.float64, requires_grad=True)
    (dual.penalty(measured) + dual.loss(measured)).backward()  # type: ignore[no-untyped-call]
    assert dual.value.grad == 0.25 - 0.75
    assert measured.grad == 2.0


def test_a_multiplier_never_falls_below_its_floor() -> None:
    dual = Dual(initial=0.1, limit=1.0)
    dual.value.data -= 5.0
    dual.project()
    assert dual.value.item() == pytest.approx(FLOOR)


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
    assert "replay_starved_s" not in plain.meters.page(run.now)
    trainer.learning = Paced()
    trainer.step = lambda: (setattr(run, "now", run.now + 1.0), trainer.learning.step(0))[1]  # type: ignore[method-assign]
    training = training_run(trainer, run.intake, lambda: run.now)
    steps = 0
    while learn(training):
        steps += 1
    training.meters.count_wait(5.0)
    page = training.page() | training.meters.page(run.now)
    # three batches; one step with the first and two with each of the others; the last batch waits for three of these
    assert steps == 3 + 1 + 2 + 2
    assert (page["samples_per_insert"], page["replay_starved_s"], page["ratio_limited_s"]) == (3.333, 5.0, 3.0)
