"""Rollout messages leave in order, each row once; the window that a batch needs, against a game of credits."""

import random
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobeast.common.wire.session import Session
from zerobeast.services.learner.ledger import StreamLedger
from zerobeast.services.learner.queue import Message, RolloutQueue
from zerobeast.services.learner.window import ACTIVE_S, MAX_WINDOW, window, window_needed


def queue_of(batch_size: int) -> RolloutQueue:
    return RolloutQueue(partial(np.empty, dtype=np.int64), batch_size)


def fill(queue: RolloutQueue, seq: int, values: list[int], version: int = 0) -> None:
    queue.put(Message(1, 0, seq, len(values), task=seq % 3, version=version), np.array(values, np.int64))


def refuse(queue: RolloutQueue, seq: int, rollouts: int = 1) -> None:
    queue.put(Message(1, 0, seq, rollouts, fate="refused"), None)


def taken(queue: RolloutQueue, *, short: bool = False) -> list[int] | None:
    batch = queue.take(short=short)
    return None if batch is None else batch.tolist()


def released(queue: RolloutQueue) -> list[int]:
    return [message.seq for message in queue.release()]


@given(
    batch_size=st.integers(1, 6),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=60),
    eager=st.lists(st.booleans(), min_size=1),
)
def test_rows_leave_in_order_and_each_once(batch_size: int, sizes: list[tuple[int, bool]], eager: list[bool]) -> None:
    queue = queue_of(batch_size)
    sent: deque[tuple[int, int, list[int]]] = deque()  # (value, task, origin)
    ends: dict[int, int] = {}  # message -> rows that are used when its turn comes
    done: list[int] = []
    made = used = void = 0

    def use_batches() -> None:
        nonlocal used
        while (batch := queue.take()) is not None:
            expected = [sent.popleft() for _ in range(batch_size)]
            assert list(zip(batch.tolist(), queue.tasks.tolist(), queue.origins.tolist(), strict=True)) == expected
            assert batch.flags.c_contiguous
            used += batch_size
            done.extend(released(queue))
        done.extend(released(queue))
        assert done == [seq for seq, end in ends.items() if end <= used]

    for seq, (size, good) in enumerate(sizes, start=1):
        if good:
            fill(queue, seq, list(range(made, made + size)))
            sent += [(made + row, seq % 3, [1, 0, seq, row, size]) for row in range(size)]
            made += size
        else:
            refuse(queue, seq, size)
            void += size
        ends[seq] = made
        if eager[seq % len(eager)]:
            use_batches()
    use_batches()
    assert len(sent) == queue.usable < batch_size
    assert queue.rollouts - queue.usable == sum(
        size for seq, (size, good) in enumerate(sizes, start=1) if not good and seq not in done
    )


def test_a_short_batch_takes_what_there_is_and_a_shortened_one_leaves_its_other_rows() -> None:
    queue = queue_of(4)
    assert taken(queue, short=True) is None
    fill(queue, 1, [1, 2, 3])
    refuse(queue, 2)
    assert (taken(queue), taken(queue, short=True)) == (None, [1, 2, 3])
    assert taken(queue, short=True) is None, "one batch at a time"
    assert released(queue) == [1, 2]
    fill(queue, 3, [4, 5, 6, 7, 8])
    assert taken(queue, short=True) == [4, 5, 6, 7], "never more than a batch"
    queue.shorten(2)
    assert (len(queue.tasks), len(queue.origins)) == (2, 2)
    assert released(queue) == []
    assert (taken(queue, short=True), released(queue)) == ([6, 7, 8], [3])


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
    return Session(1, 0, StreamLedger(rows, limit=1), opened_at=0.0, asked_at=asked_at)


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


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.booleans()), min_size=1, max_size=40))
def test_the_oldest_policy_comes_first_and_equal_ones_as_they_arrived(events: list[tuple[int, int, bool]]) -> None:
    queue, version = queue_of(1), dict.fromkeys(range(1, 5), 0)
    waiting: list[tuple[int, int]] = []  #: version and order of arrival
    for arrival, (sender, newer, learns) in enumerate(events):
        version[sender] += newer
        queue.put(Message(sender, 0, arrival + 1, 1, version=version[sender]), np.array([arrival]), by_age=True)
        waiting.append((version[sender], arrival))
        if learns:
            assert taken(queue) == [min(waiting)[1]]
            waiting.remove(min(waiting))
            assert len(queue.release()) == 1


def test_a_message_in_use_and_those_of_one_stream_are_never_overtaken() -> None:
    queue = queue_of(2)
    fill(queue, 1, [1, 2, 3], version=5)
    fill(queue, 2, [4], version=4)
    assert taken(queue) == [1, 2]
    queue.put(Message(2, 0, 1, 1, version=0), np.array([9]), by_age=True)
    assert released(queue) == []
    assert (taken(queue), released(queue)) == ([3, 9], [1, 1])
    refuse(queue, 3)
    queue.put(Message(2, 0, 2, 2, version=0), np.array([10, 11]), by_age=True)
    assert (taken(queue), released(queue)) == ([4, 10], [2, 3]), "its acknowledgement would never come"
