"""The rules by which a batch closes, with plain numbers for time."""

import pytest

from zerobeast.services.broker.batcher import Batcher

A, B, C = 1, 2, 3


def batcher(*senders: int, max_rows: int = 8, max_delay_s: float = 5.0) -> Batcher[str]:
    """A batch with a request of one row of each sender, one second after another from 10.0 on."""
    found: Batcher[str] = Batcher(max_rows, max_delay_s)
    for second, sender in enumerate(senders):
        found.add("rows", 1, sender, 10.0 + second)
    return found


def test_an_empty_batch_never_closes() -> None:
    assert not batcher().closes(1e9, set())
    assert batcher().deadline() == float("inf")


def test_the_oldest_request_waits_for_the_deadline_and_no_longer() -> None:
    batch = batcher(A, A)
    assert batch.deadline() == 15.0
    assert not batch.closes(14.999, {A, B})
    assert batch.closes(15.0, {A, B})
    assert batcher(A, max_delay_s=0.0).closes(10.0, {A, B}), "no delay: nothing is waited for"


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
    assert batcher(*senders).closes(11.0, live) == closes


def test_a_full_batch_closes_and_a_request_that_does_not_fit_makes_it_full() -> None:
    assert batcher(A, A, max_rows=2).closes(11.0, {A, B, C})
    batch = batcher(A, A, A, max_rows=4)
    assert not batch.closes(12.0, {A, B, C})
    assert not batch.fits(2)
    assert batch.closes(12.0, {A, B, C})
    assert not batch.fits(1), "nothing passes it"


def test_the_next_batch_begins_empty() -> None:
    batch = batcher(A, A, max_rows=2)
    assert batch.take() == ["rows", "rows"]
    assert (batch.rows, len(batch)) == (0, 0)
    assert batch.fits(2)
    assert not batch.closes(1e9, {A})
    batch.add("b", 1, B, now=17.0)
    assert batch.deadline() == 22.0
    assert not batch.closes(17.0, {A, B})
