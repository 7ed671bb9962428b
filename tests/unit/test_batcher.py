"""The rules by which a batch closes, with plain numbers for time."""

import pytest

from zerobeast.services.broker.batcher import Batcher

A, B, C = 1, 2, 3


def batcher(max_rows: int = 8, max_delay_s: float = 5.0) -> Batcher[str]:
    return Batcher(max_rows, max_delay_s)


def test_an_empty_batch_never_closes() -> None:
    assert not batcher().closes(1e9, set())
    assert batcher().deadline() == float("inf")


def test_a_lone_request_waits_for_the_deadline_and_no_longer() -> None:
    batch = batcher()
    batch.add("a", 1, A, now=10.0)
    assert batch.deadline() == 15.0
    assert not batch.closes(14.999, {A, B})
    assert batch.closes(15.0, {A, B})


def test_the_oldest_request_sets_the_deadline() -> None:
    batch = batcher()
    batch.add("a", 1, A, now=10.0)
    batch.add("b", 1, B, now=14.0)
    assert batch.deadline() == 15.0


@pytest.mark.parametrize(
    ("senders", "live", "closes"),
    [
        ([A], {A, B}, False),
        ([A, B], {A, B}, True),
        pytest.param([A], {A}, True, id="a second stream of a client is not waited for"),
        pytest.param([A, A], {A, B}, False, id="two streams of one client do not stand in for another client"),
        pytest.param([A, C], {A}, True, id="a client that left is not waited for"),
    ],
)
def test_a_batch_closes_at_once_when_every_live_client_is_in_it(
    senders: list[int], live: set[int], *, closes: bool
) -> None:
    batch = batcher()
    for sender in senders:
        batch.add("rows", 1, sender, now=0.0)
    assert batch.closes(0.0, live) == closes


def test_a_full_batch_closes_whichever_clients_are_missing() -> None:
    batch = batcher(max_rows=4)
    batch.add("a", 4, A, now=0.0)
    assert batch.closes(0.0, {A, B, C})


def test_a_request_that_does_not_fit_closes_the_batch_and_nothing_passes_it() -> None:
    batch = batcher(max_rows=4)
    batch.add("a", 3, A, now=0.0)
    assert not batch.closes(0.0, {A, B, C})
    assert not batch.fits(2)
    assert batch.closes(0.0, {A, B, C})
    assert not batch.fits(1)


def test_rows_follow_each_other_in_order_of_arrival() -> None:
    batch = batcher(max_rows=8)
    starts = [batch.add(name, rows, A, now=0.0) for name, rows in (("a", 3), ("b", 1), ("c", 4))]
    assert starts == [0, 3, 4]
    assert batch.rows == 8
    assert batch.take() == ["a", "b", "c"]


def test_the_next_batch_begins_empty() -> None:
    batch = batcher(max_rows=2)
    batch.add("a", 2, A, now=0.0)
    batch.take()
    assert (batch.rows, len(batch)) == (0, 0)
    assert batch.fits(2)
    assert not batch.closes(1e9, {A})
    batch.add("b", 1, B, now=7.0)
    assert batch.deadline() == 12.0
    assert not batch.closes(7.0, {A, B})


def test_no_delay_means_that_nothing_is_waited_for() -> None:
    batch = batcher(max_delay_s=0.0)
    batch.add("a", 1, A, now=3.0)
    assert batch.closes(3.0, {A, B})
