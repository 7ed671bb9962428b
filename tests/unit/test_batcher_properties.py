"""Whatever arrives and however slow the device is: no request is lost, duplicated, reordered or squeezed in."""

from hypothesis import given
from hypothesis import strategies as st

from zerobeast.services.broker.batcher import Batcher

MAX_ROWS = 8
DELAY_S = 2.0

arrivals = st.lists(
    st.tuples(
        st.integers(1, MAX_ROWS),  # rows
        st.integers(0, 5),  # sender
        st.floats(0, 3),  # seconds since the one before
        st.booleans(),  # the device is idle afterwards
    ),
    max_size=60,
)


@given(arrivals)
def test_every_request_leaves_exactly_once_in_order_within_bounds(steps: list[tuple[int, int, float, bool]]) -> None:
    batcher: Batcher[tuple[int, int, int]] = Batcher(MAX_ROWS, DELAY_S)
    batches: list[list[tuple[int, int, int]]] = []
    now = 0.0
    for number, (rows, sender, pause, idle) in enumerate(steps):
        now += pause
        if not batcher.fits(rows):
            assert batcher.closes(now, {99}), "a request that does not fit closes the batch"
            batches.append(batcher.take())
        start = batcher.rows
        assert batcher.add((number, start, rows), rows, sender, now) == start
        if idle and batcher.closes(now, {99}):
            batches.append(batcher.take())
    if batcher:
        assert batcher.closes(batcher.deadline(), {99})
        batches.append(batcher.take())

    assert [number for batch in batches for number, _, _ in batch] == list(range(len(steps)))
    for batch in batches:
        assert sum(rows for _, _, rows in batch) <= MAX_ROWS
        assert [start for _, start, _ in batch] == [sum(r for _, _, r in batch[:i]) for i in range(len(batch))]


@given(arrivals)
def test_an_idle_device_never_lets_a_request_wait_longer_than_the_delay(
    steps: list[tuple[int, int, float, bool]],
) -> None:
    batcher: Batcher[float] = Batcher(10_000, DELAY_S)
    now = 0.0
    for rows, sender, pause, _ in steps:
        arrival = now + pause
        while batcher.deadline() <= arrival:
            now = batcher.deadline()
            assert batcher.closes(now, {99})
            assert all(since + DELAY_S >= now for since in batcher.take())
        now = arrival
        batcher.add(now, rows, sender, now)
