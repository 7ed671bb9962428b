"""The circular buffer: how often and when a batch is used, and what is held."""

from collections import Counter
from functools import partial

import pytest
import torch

from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.circular import Circular

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
