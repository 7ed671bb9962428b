"""What became of the run's rollouts, over all starts of its learner, and where each stream of them stands. Pure.

    ledger.used + skipped + refused + stale + undone + rollouts in the queue  ==  what the streams have delivered

The ledger is part of the checkpoint. A learner that was killed has used up more than its last checkpoint knows: the
next one learns by HELLO which rollouts it will not get again, and counts them as undone. What is not acknowledged
comes again and is used once, to the row: of a message that straddles two batches a checkpoint may hold a part.
What an algorithm found again in a store of its own was used, whether the checkpoint knows it or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from zerobeast.common.wire.records import Origin
from zerobeast.common.wire.session import Arrival
from zerobeast.services.learner.queue import Message


@dataclass
class Ledger:
    """Rollouts by what became of them. Every rollout that a learner of this run has taken is in one of these."""

    used: int = 0  #: learned from, or stored to be
    skipped: int = 0  #: in a batch whose loss or gradient was not finite
    refused: int = 0  #: impossible values, or a size that does not fit
    stale: int = 0  #: of a policy older than learner.max_policy_lag allows
    undone: int = 0  #: done with by a learner that was killed before its next checkpoint

    def add(self, message: Message) -> None:
        """Note the end of a message; its rows that were used are noted batch by batch."""
        if message.fate == "refused":
            self.refused += message.rollouts
        elif message.fate == "stale":
            self.stale += message.rollouts

    def page(self) -> dict[str, int]:
        """By fate."""
        return asdict(self)


@dataclass
class StreamLedger:
    """What became of one stream's messages, by number."""

    rows: int = 0  #: rollouts in a message
    received: int = 0  #: the newest that came in
    consumed: int = 0  #: the newest that is used up
    begun: int = 0  #: rows of the message after `consumed` that an earlier learner has used
    pending: int = 0  #: how many are in the queue
    anchored: bool = False  #: it is known which number comes first
    task: int = 0  #: which of the run's environments the stream is of: its HELLO says so, in every start anew

    def begin(self, first: int | None) -> int:
        """Take what HELLO says: the sender's oldest message has this number. Returns rollouts that never come again.

        Without a word of it, any number may be the first: also where a learner before this one knew others.
        """
        if first is None:
            self.anchored &= bool(self.pending)
            return 0
        self.anchored = True
        gone = first - 1 - max(self.received, self.consumed)
        if gone <= 0:
            return 0
        self.received = self.consumed = first - 1
        begun, self.begun = self.begun, 0
        return gone * self.rows - begun

    def arrival(self, seq: int) -> Arrival:
        """Classify a message. A gap is what a dead connection swallowed."""
        if seq <= self.consumed:
            return Arrival.REPEATED
        if seq <= self.received:
            return Arrival.PENDING
        return Arrival.AHEAD if self.anchored and seq > self.received + 1 else Arrival.NEW

    def take(self, seq: int) -> int:
        """A NEW message went into the queue; returns how many of its first rows are used already."""
        self.received, self.pending, self.anchored = seq, self.pending + 1, True
        return self.begun if seq == self.consumed + 1 else 0

    def recover(self, row: Origin) -> int:
        """Go on behind a row that is stored. Returns how many before it were done with and are not stored."""
        missing = (row.seq - self.consumed - 1) * self.rows + row.row - self.begun
        whole = row.row + 1 == row.rows
        self.received = self.consumed = row.seq - (not whole)
        self.begun = 0 if whole else row.row + 1
        return missing

    def use(self, seq: int) -> None:
        """A message left the queue, used up."""
        self.pending, self.anchored = max(0, self.pending - 1), True
        if seq > self.consumed:
            self.consumed, self.begun = seq, 0
            self.received = max(self.received, seq)


@dataclass
class SavedLedger:
    """The ledger and its streams, by sender and slot, as a checkpoint holds them; by default of a run that begins."""

    ledger: Ledger = field(default_factory=Ledger)
    streams: dict[tuple[int, int], StreamLedger] = field(default_factory=dict)

    @classmethod
    def load(cls, state: dict[str, Any]) -> Self:
        """Inverse of `state`. Raises KeyError, TypeError or ValueError where it cannot be."""
        ledger = Ledger(**{name: int(value) for name, value in state["ledger"].items()})
        streams = {}
        for entry in state["streams"]:
            sender, slot, rows, consumed, begun = map(int, entry)
            streams[sender, slot] = StreamLedger(rows, consumed, consumed, begun, anchored=True)
        return cls(ledger, streams)

    def recover(self, rows: Iterable[Origin]) -> None:
        """Take note of rows that are stored, in this order, since a learner that was killed has taken them."""
        for row in rows:
            stream = self.streams.setdefault((row.sender, row.slot), StreamLedger(row.rows, anchored=True))
            self.ledger.undone += stream.recover(row)
            self.ledger.used += 1

    def state(self) -> dict[str, Any]:
        """Plain values; a stream is [sender, slot, rows, consumed, begun]."""
        streams = [[*key, each.rows, each.consumed, each.begun] for key, each in self.streams.items()]
        return {"ledger": self.ledger.page(), "streams": streams}
