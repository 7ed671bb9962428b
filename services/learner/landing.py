"""Where rollouts land: in the queue, in the order of their arrival, and beside it while it has no room.

What waits in the socket keeps everything behind it from being read: a HELLO among it is unanswered, its actor says it
again and again, and is soon behind nothing but its own repetitions. So rollouts are taken out of the socket as they
come. It is memory that the socket would hold as well, bounded by the credit that was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from common.errors import RemoteProtocolError
from common.session import Session
from common.transport import Incoming, Kept
from services.learner.admission import Terms, episodes_of, flaw
from services.learner.books import Books, Ledger
from services.learner.queue import Message, RowQueue, Rows


class Waiting(NamedTuple):
    """A rollout that is beside the queue."""

    session: Session[Ledger]
    message: Kept
    at: float


class Landing:
    """Fills the queue.

    Args:
      terms: of the run.
      queue: to fill.
      books: where what is refused is noted.
      refuse: told of each malformed message.
    """

    def __init__(
        self, terms: Terms, queue: RowQueue, books: Books, refuse: Callable[[RemoteProtocolError], None]
    ) -> None:
        self._terms, self._queue, self._books, self._refuse = terms, queue, books, refuse
        self._waiting: deque[Waiting] = deque()
        self._largest = terms.num_envs * queue.row_bytes  #: of a message that can be taken

    def __len__(self) -> int:
        """Rollout messages that are beside the queue."""
        return len(self._waiting)

    def take(self, session: Session[Ledger], message: Incoming, now: float) -> None:
        """A NEW rollout has come."""
        if self._waiting or not self._room:
            session.state.hold(message.header.seq)
            self._waiting.append(Waiting(session, message.keep(self._largest), now))
        else:
            self._land(session, message, now)

    def advance(self) -> None:
        """Move what waits into the queue, as far as there is room."""
        while self._waiting and self._room:
            self._land(*self._waiting.popleft())

    def forget(self, sender: int) -> None:
        """Drop what waits of an actor whose numbers will not be known any more."""
        self._waiting = deque(each for each in self._waiting if each.session.sender != sender)

    @property
    def _room(self) -> bool:
        return self._queue.free >= self._terms.num_envs

    def _land(self, session: Session[Ledger], message: Incoming | Kept, at: float) -> None:
        header = message.header
        entry = Message(header.sender, header.slot, header.seq, at=at, task=session.state.task)
        used = session.state.take(header.seq)
        try:
            entry = entry._replace(episodes=self._receive_rows(message, used))
        except RemoteProtocolError as error:
            self._queue.cancel()
            self._refuse(error)
            self._books.refused += session.state.rows - used
        self._queue.commit(entry)

    def _receive_rows(self, message: Incoming | Kept, used: int) -> tuple[tuple[float, int], ...]:
        """Fill a reservation, without the first rows where a checkpoint has them; returns the episodes that ended.

        Raises:
          RemoteProtocolError: the rollout cannot be trained on.
        """
        n_rows, entries = message.header.body
        if not 0 < n_rows <= self._terms.num_envs:
            raise RemoteProtocolError(f"a ROLLOUT of {n_rows} rows, expected 1 to {self._terms.num_envs}", "payload")
        episodes = episodes_of(entries)
        if n_rows <= used:
            raise RemoteProtocolError(f"a ROLLOUT of {n_rows} rows, of which {used} were used already", "payload")
        rows = self._queue.reserve(n_rows - used)
        assert rows is not None, "room for the largest message was checked"
        whole: Rows = np.zeros(n_rows, rows.dtype) if used else rows
        if not message.into(whole.view("u1")):
            raise RemoteProtocolError(f"a ROLLOUT of {n_rows} rows, expected {whole.nbytes} bytes of them", "payload")
        if sentence := flaw(whole, self._terms.env):
            raise RemoteProtocolError(f"a ROLLOUT cannot be trained on: {sentence}", "values")
        if used:
            rows[...] = whole[used:]
        return episodes
