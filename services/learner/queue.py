"""Rollout messages between the socket and the update. Pure.

    queue.put(message, rows)        # rows in memory of their own; None: nothing of it can be learned from
    queue.expire(version)           # nor from messages whose policy is older than this version, now and later
    batch = queue.take()            # the oldest batch_size rows; None while there are fewer
    tasks = queue.tasks             # which environment each of them is of, and
    origins = queue.origins         # which row of which message it is, and
    acting = queue.acting           # the broker that chose its actions
    done = queue.release()          # the batch is used, and with it these messages, in the order of their arrival

Rows leave once each, in the order of arrival, or those of the oldest policy first if it is the first to expire
(`by_age`). The messages of one stream stay in their order, because an acknowledgement covers every message before it. A
message is done when its last row and every message before it are, even if it holds nothing to learn from.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire import Origin
from zerobeast.common.wire.episodes import Episode, LostEpisode

Rows = NDArray[Any]
Fate = Literal["used", "refused", "stale"]


class Message(NamedTuple):
    """A rollout message and what becomes of it."""

    sender: int
    slot: int
    seq: int
    rollouts: int  #: how many it counts for in the ledger
    episodes: tuple[Episode, ...] = ()  #: that ended in it
    lost: tuple[LostEpisode, ...] = ()  #: that environments have failed in
    at: float = 0.0  #: when it arrived
    begun: int = 0  #: how many of its first rows were used already
    task: int = 0  #: which of the run's environments its rows are of
    version: int = 0  #: the oldest policy_version of its steps
    fate: Fate = "used"
    acting: int = 0  #: epoch of the broker that chose its actions, 0 if unknown


@dataclass
class _Entry:
    message: Message
    rows: Rows  #: those that are still to be used
    row: int  #: number of the first of them in the message

    def origins(self, count: int) -> Iterator[Origin]:
        """Origins of the next `count` rows."""
        sender, slot, seq, rows = *self.message[:3], self.row + len(self.rows)
        return (Origin(sender, slot, seq, row, rows) for row in range(self.row, self.row + count))


class RolloutQueue:
    """A queue of rollout messages, read in batches of rows.

    Args:
      allocate: allocates memory for a number of rows.
      batch_size: rows of a batch.
    """

    def __init__(self, allocate: Callable[[int], Rows], batch_size: int) -> None:
        self.allocate = allocate
        self.batch_size = batch_size
        self.tasks: NDArray[np.int64] = np.zeros(0, np.int64)  #: [n], of the rows that `take` returned
        self.origins: NDArray[np.int64] = np.zeros((0, len(Origin._fields)), np.int64)  #: [n, 5], of the same
        self.acting: NDArray[np.int64] = np.zeros(0, np.int64)  #: [n], epochs of the brokers that acted in them
        self._none = allocate(0)
        self._entries: deque[_Entry] = deque()
        self.usable = 0  #: rows that can be learned from
        self._void = 0  #: rollouts of messages without such rows, until their turn comes
        self._taken = 0
        self._fixed = 0  #: messages at the front that `take` has returned or that are used in part
        self._oldest = 0  #: version that may still be learned from

    def __len__(self) -> int:
        """Messages that are not done."""
        return len(self._entries)

    @property
    def rollouts(self) -> int:
        """Rollouts that arrived and are not in the ledger yet."""
        return self.usable + self._void

    @property
    def ready(self) -> bool:
        """Whether `take` has a whole batch."""
        return self.usable >= self.batch_size and not self._taken

    @property
    def begun(self) -> tuple[Message, int] | None:
        """The message that is used in part, and how many of its rows were used."""
        if not self._entries:
            return None
        message, rows = self._entries[0].message, self._entries[0].rows
        used = message.rollouts - len(rows) if message.fate == "used" else 0
        return (message, used) if used else None

    def put(self, message: Message, rows: Rows | None, *, by_age: bool = False) -> None:
        """Add a message; without rows its `fate` is the reason. With `by_age`, newer policies' messages let it pass."""
        entry = _Entry(message, self._none if rows is None else rows, message.begun)
        self._entries.insert(self._place(message) if by_age else len(self._entries), entry)
        self.usable += len(entry.rows)
        self._void += message.rollouts if rows is None else 0
        self._judge(entry)

    def expire(self, version: int) -> None:
        """Drop what is left of messages whose policy is older than this version."""
        assert not self._taken, "not between take and release"
        if version > self._oldest:
            self._oldest = version
            for entry in self._entries:
                self._judge(entry)

    def sort(self) -> None:
        """Sort the messages by sender, slot and number, those used in part first."""
        assert not self._taken, "not between take and release"
        self._entries = deque(sorted(self._entries, key=lambda entry: (not entry.row, *entry.message[:3])))

    def take(self, *, short: bool = False) -> Rows | None:
        """The oldest batch, or None. It stays as it is until `release`.

        Args:
          short: take the rows that there are if they are too few for a batch.
        """
        count = min(self.usable, self.batch_size)
        if self._taken or not count or (count < self.batch_size and not short):
            return None
        self._taken = count
        parts: list[Rows] = []
        known: list[tuple[int, int, Origin]] = []  #: task, acting process and origin of each row
        self._fixed = 0
        for entry in self._entries:
            self._fixed += 1
            if len(part := entry.rows[: count - len(known)]):
                parts.append(part)
                known += [(entry.message.task, entry.message.acting, row) for row in entry.origins(len(part))]
            if len(known) == count:
                break
        self.tasks, self.acting, self.origins = (np.array(each, np.int64) for each in zip(*known, strict=True))
        if len(parts) == 1:
            return parts[0]
        batch = self.allocate(count)
        np.concatenate([part.view(np.uint8) for part in parts], out=batch.view(np.uint8))  # copying by field is slow
        return batch

    def shorten(self, count: int) -> None:
        """Leave all but the first rows of `take` in the queue."""
        self._taken = min(self._taken, count)
        self.tasks, self.acting, self.origins = (each[:count] for each in (self.tasks, self.acting, self.origins))

    def release(self) -> list[Message]:
        """Drop the rows of `take`, if any, and return the messages that are done now, in the order of the queue."""
        done = []
        self.usable -= self._taken
        while self._entries:
            entry = self._entries[0]
            used = min(self._taken, len(entry.rows))
            self._taken -= used
            entry.rows, entry.row = entry.rows[used:], entry.row + used
            if len(entry.rows):
                break
            if entry.message.fate != "used":
                self._void -= entry.message.rollouts
            done.append(self._entries.popleft().message)
        self._fixed = int(self.begun is not None)
        return done

    def _place(self, message: Message) -> int:
        """Where to insert a message: behind those of an older policy, those of its own stream, and those without rows.

        The last would otherwise be passed for ever, and their acknowledgement with them.
        """
        for index in range(len(self._entries), self._fixed, -1):
            before = self._entries[index - 1].message
            if before.fate != "used" or before.version <= message.version or before[:2] == message[:2]:
                return index
        return self._fixed

    def _judge(self, entry: _Entry) -> None:
        rows = entry.rows
        if len(rows) and entry.message.version < self._oldest:
            entry.message = entry.message._replace(fate="stale", rollouts=len(rows))  # some may be used already
            entry.rows = self._none
            self.usable -= len(rows)
            self._void += len(rows)
