"""Rollouts in flight to the learner: at most a window of them, each kept until it was consumed. Pure.

A rollout is numbered, sent, and kept until an ACK confirms that an update has used it. After a new WELCOME (the learner
restarted, dropped this client or misses a number) everything unacknowledged is sent again, except what that learner
reports as received; it drops duplicates by their numbers. HELLO carries the first unacknowledged number: a learner can
no longer get any rollout before it.
The window counts rollouts that may be begun and unacknowledged, so a rollout that was begun can always be sent. It
is no larger than the sockets' queues, so no pipe ever fills.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire.episodes import Entry, limit_infos
from zerobeast.common.wire.messages import MAX_EPISODES, MAX_WINDOW, Frames, Header, Kind
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.waits import Timeouts

MAX_WAITING_EPISODES = 10_000  #: beyond which the oldest are dropped and counted

Rows = NDArray[np.void]


@dataclass
class _Message:
    seq: int
    rows: Rows
    episodes: list[Entry]
    acting: int
    sent: bool = False


class Outbox:
    """One env group's rollouts.

    Args:
      stream: the conversation with the learner; the outbox numbers its messages.
      no_progress_s: seconds without an ACK before HELLO is sent to the learner again.
    """

    def __init__(self, stream: Stream, no_progress_s: float = Timeouts.no_progress) -> None:
        self.stream = stream
        self._no_progress_s = no_progress_s
        self.sent = 0
        self.seq = 0  #: number of the newest rollout, which is how many there have been
        self.progress: float | None = None  #: the share of the run that is trained, from 0 to 1, if HELLO asks for it
        self.episodes_dropped = 0  #: because more ended than rollouts could carry
        self._episodes: deque[Entry] = deque()
        self._window = 0
        self._kept: deque[_Message] = deque()
        self._progress_at = 0.0

    @property
    def room(self) -> bool:
        """Whether the window admits the beginning of another rollout."""
        return len(self._kept) < self._window

    @property
    def unacked(self) -> int:
        """Rollouts that no update has used yet."""
        return len(self._kept)

    @property
    def acked(self) -> int:
        """Number of the newest acknowledged rollout; all before it are acknowledged too."""
        return self.seq - len(self._kept)

    @property
    def in_transit(self) -> bool:
        """Whether rollouts are in flight to a learner that has sent this group WELCOME."""
        return self.stream.open and bool(self._kept)

    def push(self, rows: Rows, episodes: list[Entry], now: float, acting: int = 0) -> None:
        """Queue a rollout. Its rows must stay unchanged until `accept` returns them.

        Args:
          rows: [N] of `rollout_record`.
          episodes: those that ended since the previous one.
          now: seconds.
          acting: epoch of the broker that chose its actions, 0 if unknown.
        """
        self.seq += 1
        if not self._kept:
            self._progress_at = now
        self._episodes.extend(episodes)
        while len(self._episodes) > MAX_WAITING_EPISODES:
            self._episodes.popleft()
            self.episodes_dropped += 1
        travelling = [self._episodes.popleft() for _ in range(min(MAX_EPISODES, len(self._episodes)))]
        self._kept.append(_Message(self.seq, rows, limit_infos(travelling), acting))

    def due(self, now: float) -> tuple[Header, Frames] | None:
        """What to send now: a HELLO or the oldest rollout not sent yet."""
        if self.stream.open and now - self._progress_at > self._no_progress_s:
            self._progress_at = now
            self.stream.greet_again(now)
        if not self.stream.open:
            self.stream.hello_terms["first"] = self.acked + 1
            return self.stream.due(now)
        message = self._unsent()
        if message is None:
            return None
        stream = self.stream
        body: tuple[Any, ...] = (len(message.rows), message.episodes, message.acting)
        header = Header(Kind.ROLLOUT, stream.sender, stream.slot, stream.epoch, message.seq, body)
        return header, (message.rows,)

    def mark_sent(self) -> None:
        """Note that the rollout that `due` handed out was sent."""
        message = self._unsent()
        if self.stream.open and message is not None:
            message.sent = True
            self.stream.seq = message.seq
            self.sent += 1

    def accept(self, header: Header, now: float) -> tuple[Reply, list[Rows]]:
        """Take a message from the learner; also returns the rows that are free now.

        Raises:
          ConfigError: the learner refuses for good.
        """
        if header.kind is Kind.ACK:
            if header.epoch != self.stream.epoch:
                return Reply.STALE, []
            consumed_seq, window, *progress = header.body
            self._follow(*progress)
            return Reply.ANSWER, self._acknowledge(consumed_seq, window, now)
        waits = self.stream.open and (self._kept or not self.room)
        if header.kind is Kind.HERE and not header.seq and header.epoch == self.stream.epoch and waits:
            if self.stream.count_setback("sends HERE", now):
                self.stream.greet_again(now)  # the connection is new: what was in flight on the old one may be lost
            return Reply.STALE, []
        reply = self.stream.accept(header, now)
        if reply is not Reply.WELCOME:
            return reply, []
        window, received = self.stream.terms.get("window"), self.stream.terms.get("received")
        self._follow(self.stream.terms.get("progress"))
        for message in self._kept:
            message.sent = type(received) is int and message.seq <= received
        return reply, self._acknowledge(header.seq, window if type(window) is int else 1, now)

    def _follow(self, progress: Any = None) -> None:
        if type(progress) is float and 0 <= progress <= 1:
            self.progress = progress

    def _acknowledge(self, consumed_seq: int, window: int, now: float) -> list[Rows]:
        self._window = max(0, min(window, MAX_WINDOW))
        self.stream.note_answer(now)
        free = []
        while self._kept and self._kept[0].seq <= consumed_seq:
            free.append(self._kept.popleft().rows)
        if free or not self._kept:  # otherwise an ACK that only changes the window would hide that rollouts were lost
            self._progress_at = now
        return free

    def _unsent(self) -> _Message | None:
        return next((message for message in self._kept if not message.sent), None)
