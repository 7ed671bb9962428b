"""The ring of rollout rows."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.queue import Message, RowQueue

pytestmark = pytest.mark.unit


def queue_of(batches: int, batch_size: int) -> RowQueue:
    return RowQueue(np.zeros(batches * batch_size, np.int64), batch_size)


def fill(queue: RowQueue, seq: int, values: list[int]) -> bool:
    rows = queue.reserve(len(values))
    if rows is None:
        return False
    rows[:] = values
    queue.commit(Message(1, 0, seq, task=seq % 3))
    return True


@given(
    batch_size=st.integers(1, 6),
    batches=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 9), max_size=60),
    eager=st.lists(st.booleans(), min_size=1),
)
def test_rows_leave_in_order_each_once_whatever_the_sizes(
    batch_size: int, batches: int, sizes: list[int], eager: list[bool]
) -> None:
    queue = queue_of(batches, batch_size)
    sent: deque[int] = deque()
    tasks: deque[int] = deque()
    ends: dict[int, int] = {}
    done: list[int] = []
    counter = taken = 0

    def use_batches() -> None:
        nonlocal taken
        while (batch := queue.take()) is not None:
            assert batch.tolist() == [sent.popleft() for _ in range(batch_size)]
            assert batch.flags.c_contiguous
            assert queue.tasks.tolist() == [tasks.popleft() for _ in range(batch_size)], "each row keeps its task"
            taken += batch_size
            done.extend(message.seq for message in queue.release())
            assert done == [seq for seq, end in ends.items() if end <= taken]

    for seq, size in enumerate(sizes, start=1):
        values = list(range(counter, counter + size))
        if not fill(queue, seq, values):
            assert size > queue.free
            use_batches()
            if not fill(queue, seq, values):
                assert size > queue.largest, "a message of the size allowed always fits in the end"
                continue
        sent.extend(values)
        tasks.extend([seq % 3] * size)
        counter += size
        ends[seq] = counter
        assert queue.rows <= queue.capacity
        if eager[seq % len(eager)]:
            use_batches()
    use_batches()
    assert len(sent) == queue.rows < batch_size


def test_a_message_is_done_only_when_its_last_row_was_used() -> None:
    queue = queue_of(3, 4)
    fill(queue, 1, [0, 1, 2, 3, 4])
    fill(queue, 2, [5, 6])
    assert queue.take() is not None
    assert queue.release() == [], "one row of message 1 is left"
    fill(queue, 3, [7])
    assert queue.take() is not None
    assert [message.seq for message in queue.release()] == [1, 2, 3]


def test_a_taken_batch_keeps_its_rows_until_it_is_released() -> None:
    queue = queue_of(2, 2)
    fill(queue, 1, [0, 1])
    fill(queue, 2, [2, 3])
    batch = queue.take()
    assert batch is not None
    assert queue.reserve(1) is None
    assert queue.take() is None, "one batch at a time"
    assert batch.tolist() == [0, 1]
    queue.release()
    assert queue.reserve(2) is not None


def test_a_cancelled_reservation_leaves_no_trace() -> None:
    queue = queue_of(2, 2)
    rows = queue.reserve(3)
    assert rows is not None
    rows[:] = 9
    queue.cancel()
    assert queue.rows == 0
    fill(queue, 1, [1, 2])
    batch = queue.take()
    assert batch is not None
    assert batch.tolist() == [1, 2]


def test_a_message_of_no_rows_is_done_in_its_turn() -> None:
    queue = queue_of(2, 2)
    fill(queue, 1, [1])
    queue.commit(Message(1, 0, 2))
    assert queue.release() == []
    fill(queue, 3, [2])
    queue.take()
    assert [message.seq for message in queue.release()] == [1, 2, 3]
    queue.commit(Message(1, 0, 4))
    assert [message.seq for message in queue.release()] == [4]


def test_what_is_begun_is_the_message_that_a_batch_has_cut() -> None:
    queue = queue_of(3, 4)
    assert queue.begun is None
    fill(queue, 1, [0, 1, 2])
    fill(queue, 2, [3, 4, 5])
    queue.take()
    assert queue.begun is None
    queue.release()
    assert queue.begun == (Message(1, 0, 2, task=2), 1)
    fill(queue, 3, [6, 7])
    queue.take()
    queue.release()
    assert queue.begun is None


def test_a_capacity_that_is_no_multiple_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="multiple"):
        RowQueue(np.zeros(5), 2)
