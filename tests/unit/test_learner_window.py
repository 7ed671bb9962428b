"""The window that a batch needs, against a game of credits that knows no formula."""

import random

import pytest

from zerobeast.common.wire.session import Session
from zerobeast.services.learner.ledger import StreamLedger
from zerobeast.services.learner.window import ACTIVE_S, MAX_WINDOW, window, window_needed


def stalls(batch: int, rows: list[int], window: int, rng: random.Random) -> bool:
    """Play the rollout plane with groups that send whenever they may, in any order: does a batch stay incomplete?"""
    credit = [window] * len(rows)
    queue: list[list[int]] = []  # [group, rows that are left] in order of arrival
    for _ in range(4 * max(rows)):
        order = [group for group in range(len(rows)) for _ in range(credit[group])]
        rng.shuffle(order)
        queue += [[group, rows[group]] for group in order]
        credit = [0] * len(rows)
        need = batch
        while need and queue:
            taken = min(need, queue[0][1])
            need -= taken
            queue[0][1] -= taken
            if not queue[0][1]:
                credit[queue.pop(0)[0]] += 1
        if need:
            return True
    return False


@pytest.mark.parametrize("seed", range(100))
def test_the_needed_window_does_not_stall_and_is_the_smallest_for_streams_of_one_size(seed: int) -> None:
    rng = random.Random(seed)
    batch, rows = rng.randint(1, 40), [rng.randint(1, 24) for _ in range(rng.randint(1, 4))]
    assert not stalls(batch, rows, window_needed(batch, rows), rng)
    equal = rows[:1] * len(rows)
    needed = window_needed(batch, equal)
    assert not stalls(batch, equal, needed, rng)
    assert needed == 1 or stalls(batch, equal, needed - 1, rng)


def stream(rows: int, asked_at: float | None) -> Session[StreamLedger]:
    return Session(1, 0, StreamLedger(rows), opened_at=0.0, asked_at=asked_at)


def test_streams_that_deliver_nothing_narrow_no_window_unless_all_are_such() -> None:
    busy, silent = stream(4, 100.0), [stream(4, None) for _ in range(1000)]
    alone = window(2, 32, [busy], 100.0)
    assert alone == window_needed(32, [4]) > 2
    stopped = stream(4, 100.0 - ACTIVE_S)
    assert window(2, 32, [busy, *silent], 100.0) == window(2, 32, [busy, stopped], 100.0) == alone
    assert window(2, 32, [busy, stream(4, 100.0)], 100.0) < alone
    assert window(2, 32, [stream(8, None), stream(4, None)], 0.0) == window_needed(32, [4])
    assert window(2, 32, [], 0.0) == 2
    assert window(2, 1000, [stream(1, None)], 0.0) == MAX_WINDOW
