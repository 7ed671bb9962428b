"""The rules by which a batch closes, with plain numbers for time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobeast.services.broker.batcher import Batcher

A, B, C = 1, 2, 3
MAX_ROWS, DELAY_S = 8, 2.0
ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, MAX_ROWS),  # rows
        st.integers(0, 5),  # sender
        st.floats(0, 3),  # seconds since the one before
        st.booleans(),  # the device is idle afterwards
    ),
    max_size=60,
)


@pytest.mark.parametrize(
    ("senders", "live", "closes"),
    [
        pytest.param([], set(), False, id="an empty batch never closes"),
        ([A], {A, B}, False),
        ([A, B], {A, B}, True),
        pytest.param([A, A], {A, B}, False, id="two streams of one client do not stand in for another client"),
        pytest.param([A, C], {A}, True, id="a client that left is not waited for"),
        pytest.param([A, A, A], {A, B}, True, id="it is full"),
    ],
)
def test_a_batch_closes_at_once_when_it_is_full_or_every_live_client_is_in_it(
    senders: list[int], live: set[int], *, closes: bool
) -> None:
    batch: Batcher[str] = Batcher(max_rows=3, max_delay_s=5.0)
    for sender in senders:
        batch.add("rows", 1, sender, 10.0)
    assert batch.closes(11.0, live) == closes
    assert batch.take() == ["rows"] * len(senders)
    batch.add("next", 1, B, 11.0)
    assert not batch.closes(11.0, {A, B}), "the next one begins empty"


@given(ARRIVALS)
def test_every_request_leaves_exactly_once_in_order_within_bounds(steps: list[tuple[int, int, float, bool]]) -> None:
    batcher: Batcher[tuple[int, int, int]] = Batcher(MAX_ROWS, DELAY_S)
    batches: list[list[tuple[int, int, int]]] = []
    now = 0.0
    for number, (rows, sender, pause, idle) in enumerate(steps):
        now += pause
        if not batcher.fits(rows):
            assert not batcher.fits(1), "nothing passes it"
            assert batcher.closes(now, {99}), "a request that does not fit closes the batch"
            batches.append(batcher.take())
        start = batcher.rows
        assert batcher.add((number, start, rows), rows, sender, now) == start
        if idle and batcher.closes(now, {99}):
            batches.append(batcher.take())
    if batcher:
        assert batcher.closes(batcher.deadline(), {99})
        batches.append(batcher.take())
    assert (batcher.rows, batcher.deadline()) == (0, float("inf"))

    assert [number for batch in batches for number, _, _ in batch] == list(range(len(steps)))
    for batch in batches:
        assert sum(rows for _, _, rows in batch) <= MAX_ROWS
        assert [start for _, start, _ in batch] == [sum(r for _, _, r in batch[:i]) for i in range(len(batch))]


@given(ARRIVALS)
def test_an_idle_device_lets_a_request_wait_exactly_the_delay(steps: list[tuple[int, int, float, bool]]) -> None:
    batcher: Batcher[float] = Batcher(10_000, DELAY_S)
    now = 0.0
    for rows, sender, pause, _ in steps:
        arrival = now + pause
        while batcher.deadline() <= arrival:
            assert not batcher.closes(batcher.deadline() - 0.001, {99})
            now = batcher.deadline()
            assert batcher.closes(now, {99})
            assert all(since + DELAY_S >= now for since in batcher.take())
        now = arrival
        batcher.add(now, rows, sender, now)
