"""Rollouts between the socket and the update, without either: a ring of rows filled in place. Pure.

    rows = queue.reserve(16)            # receive into these
    queue.commit(message)               # or queue.cancel(): nothing has happened
    batch = queue.take()                # batch_size rows, oldest first, one contiguous slice; None while too few
    tasks = queue.tasks                 # which environment each of them is of
    done = queue.release()              # the rows are free again; these messages are used up

The ring holds a multiple of batch_size rows and gives them back a batch at a time, so a batch never wraps. A
message may: it is then received into scratch rows and copied to both ends. Rows leave in the order of arrival,
each exactly once; a message is done when its last row is.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]


class Message(NamedTuple):
    """Which rollout message rows belong to."""

    sender: int
    slot: int
    seq: int
    episodes: tuple[tuple[float, int], ...] = ()  #: (return, length) of those that ended in it
    at: float = 0.0  #: when it came
    task: int = 0  #: which of the run's environments its rows are of


class RowQueue:
    """A bounded first-in-first-out queue of rows.

    Args:
      rows: [capacity] storage, a positive multiple of batch_size.
      batch_size: rows of a batch.
    """

    def __init__(self, rows: Rows, batch_size: int) -> None:
        assert len(rows) in range(batch_size, len(rows) + 1, batch_size), "want a multiple of batch_size rows"
        self._rows = rows
        self._scratch = np.zeros_like(rows[:0])
        self._tasks = np.zeros(len(rows), np.int64)
        self.batch_size = batch_size
        self.capacity = len(rows)
        self.row_bytes = rows.dtype.itemsize
        self._head = 0  #: rows committed since the start
        self._tail = 0  #: rows released since the start
        self._done = 0  #: of them, those of messages that are done
        self._reserved = 0
        self._taken = False
        self._messages: deque[tuple[int, Message]] = deque()  #: with the value of `_tail` that ends each

    @property
    def rows(self) -> int:
        """Rows committed and not yet released."""
        return self._head - self._tail

    @property
    def free(self) -> int:
        """Rows that can be reserved."""
        return self.capacity - self.rows

    @property
    def begun(self) -> tuple[Message, int] | None:
        """The message that is used in part, and how many of its rows are."""
        return (self._messages[0][1], self._tail - self._done) if self._tail > self._done else None

    @property
    def largest(self) -> int:
        """Rows that a message may have, so that a queue without room for it always holds a whole batch."""
        return self.capacity - self.batch_size + 1

    @property
    def ready(self) -> bool:
        """Whether `take` has a batch."""
        return self.rows >= self.batch_size and not self._taken

    def reserve(self, n: int) -> Rows | None:
        """n contiguous rows to fill, or None where they are not free. Follow with `commit` or `cancel`."""
        assert n > 0, "a message of no rows needs no reservation"
        assert not self._reserved, "one reservation at a time"
        if n > self.free:
            return None
        self._reserved = n
        start = self._head % self.capacity
        if start + n <= self.capacity:
            return self._rows[start : start + n]
        if len(self._scratch) < n:
            self._scratch = np.zeros_like(self._rows[:n])
        return self._scratch[:n]

    def commit(self, message: Message) -> None:
        """Append the reserved rows; without a reservation, a message of no rows, done when its turn comes."""
        n, self._reserved = self._reserved, 0
        start = self._head % self.capacity
        before_end = self.capacity - start
        if n > before_end:
            self._rows[start:] = self._scratch[:before_end]
            self._rows[: n - before_end] = self._scratch[before_end:n]
        self._tasks[(start + np.arange(n)) % self.capacity] = message.task
        self._head += n
        self._messages.append((self._head, message))

    def cancel(self) -> None:
        """Give the reserved rows back unfilled."""
        self._reserved = 0

    def take(self) -> Rows | None:
        """The oldest batch, or None. Its rows stay as they are until `release`."""
        if not self.ready:
            return None
        self._taken = True
        start = self._tail % self.capacity
        return self._rows[start : start + self.batch_size]

    @property
    def tasks(self) -> NDArray[np.int64]:
        """[batch_size], the task of each row that `take` gave, until `release`."""
        start = self._tail % self.capacity
        return self._tasks[start : start + self.batch_size]

    def release(self) -> list[Message]:
        """Free the rows of `take`, if any, and return the messages that are now done, in order of arrival."""
        if self._taken:
            self._taken = False
            self._tail += self.batch_size
        done = []
        while self._messages and self._messages[0][0] <= self._tail:
            self._done, message = self._messages.popleft()
            done.append(message)
        return done
