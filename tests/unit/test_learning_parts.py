"""Parts of learning: batches that are used again, targets that follow, and multipliers that hold a limit."""

from collections import Counter
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.circular import Circular
from zerobeast.rl.learning.dual import FLOOR, Dual
from zerobeast.rl.learning.target import Target

circular_of = partial(Circular, device=torch.device("cpu"))


class Numbered(int):
    """A batch that is nothing but its number, also in a checkpoint."""

    def _asdict(self) -> int:
        return self


ARRIVALS = [Numbered(arrival) for arrival in range(40)]


@pytest.mark.parametrize("uses", [1, 2, 5, 20])
@pytest.mark.parametrize("batches", [1, 4, 7])
def test_every_batch_is_used_as_often_as_it_may_be_and_none_is_held_for_longer_than_n_arrivals(
    batches: int, uses: int
) -> None:
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


@pytest.mark.parametrize("arrived", [0, 3, 10])
def test_it_resumes_from_its_unfinished_batches(arrived: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "restored", lambda number, _device: number)
    whole, resumed = circular_of(4, 5), circular_of(4, 5)
    for arrival in ARRIVALS[:arrived]:
        whole.add(arrival)
    resumed.load(whole.state())
    assert resumed.state() == whole.state()
    for arrival in ARRIVALS[arrived : arrived + 6]:
        assert resumed.add(arrival) == whole.add(arrival)


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


def test_the_period_goes_on_after_a_restart() -> None:
    target, again = (Target(source=(net := nn.Linear(3, 2)), copy=deepcopy(net), period=3) for _ in range(2))
    for _ in range(2):
        assert not target.count()
    again.load(target.state())
    assert torch.equal(again.copy.weight, target.copy.weight)
    assert again.count()


def test_the_penalty_moves_what_is_measured_and_the_loss_moves_the_multiplier() -> None:
    dual = Dual(initial=2.0, limit=0.25).double()
    measured = torch.tensor(0.75, dtype=torch.float64, requires_grad=True)
    (dual.penalty(measured) + dual.loss(measured)).backward()  # type: ignore[no-untyped-call]
    assert dual.value.grad == 0.25 - 0.75
    assert measured.grad == 2.0


def test_what_is_limited_ends_at_its_limit() -> None:
    dual, x = Dual(initial=1.0, limit=0.5), nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([*dual.parameters(), x], lr=0.05)
    for _ in range(2000):  # the loss wants x = 2, the limit allows x^2 = 0.5
        optimizer.zero_grad()
        ((x - 2).square() + dual.penalty(x.square()) + dual.loss(x.square())).backward()
        optimizer.step()
        dual.project()
    assert x.square().item() == pytest.approx(0.5, abs=1e-3)


def test_a_multiplier_never_falls_below_its_floor() -> None:
    dual = Dual(initial=0.1, limit=1.0)
    dual.value.data -= 5.0
    dual.project()
    assert dual.value.item() == pytest.approx(FLOOR)
