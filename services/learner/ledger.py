"""What became of the run's rollouts, over all starts of its learner, and how far each stream has come. Pure.

    ledger.used + skipped + refused + stale + undone + rollouts in the queue  ==  what the streams have delivered

The ledger is part of the checkpoint. A learner that was killed has used more than its last checkpoint counts: HELLO
gives the next one the number of the first rollout that it can still get, and it counts those before as undone.
Unacknowledged rollouts come again, and every row is used once: if a message straddles two batches, a checkpoint may
count only its first rows. Rollouts that an algorithm recovers from its own store count as used, whether or not the
checkpoint counts them.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from zerobeast.common.wire import Origin
from zerobeast.common.wire.session import Arrival
from zerobeast.services.learner.queue import Message


@dataclass
class Ledger:
    """Rollouts by what became of them. Every rollout that a learner of this run has taken is in one of these."""

    used: int = 0  #: learned from, or stored to be
    skipped: int = 0  #: in a batch whose loss or gradient was not finite
    refused: int = 0  #: impossible values, or a size that does not fit
    stale: int = 0  #: of a policy older than learner.max_policy_lag allows
    undone: int = 0  #: used up by a learner that was killed before its next checkpoint

    def add(self, message: Message) -> None:
        """Count a message that ended as refused or stale; used rows are counted batch by batch."""
        if message.fate == "refused":
            self.refused += message.rollouts
        elif message.fate == "stale":
            self.stale += message.rollouts


@dataclass
class StreamLedger:
    """What became of one stream's messages, by number."""

    rows: int = 0  #: rollouts in a message
    received: int = 0  #: number of the newest message that came in
    consumed: int = 0  #: number of the newest message that is used up
    begun: int = 0  #: rows of the message after `consumed` that an earlier learner has used
    pending: int = 0  #: how many are in the queue
    anchored: bool = False  #: whether it is known which number comes first
    limit: int = 0  #: number of the newest message that it may begin; like all below, not part of a checkpoint
    granted_at: float = 0.0  #: when `limit` was raised last
    task: int = 0  #: index of its environment among the run's; given by HELLO, anew in every start
    follows: bool = False  #: whether it is to get the progress of the run with each ACK; likewise

    def begin(self, first: int | None) -> int:
        """Take the number of the sender's oldest message from HELLO. Returns how many rollouts will never come again.

        If HELLO gives none, any number may be the first, even if an earlier learner has received others.
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

    @property
    def outstanding(self) -> int:
        """Messages that it may have begun, or has sent all the same, and that are not used up."""
        return max(self.limit, self.received, self.consumed) - self.consumed

    def grant(self, limit: int, now: float) -> None:
        """Admit the messages up to this number."""
        if limit > self.limit:
            self.limit, self.granted_at = limit, now

    def arrival(self, seq: int) -> Arrival:
        """Classify a message. A gap means that a dead connection lost messages."""
        if seq <= self.consumed:
            return Arrival.REPEATED
        if seq <= self.received:
            return Arrival.PENDING
        return Arrival.AHEAD if self.anchored and seq > self.received + 1 else Arrival.NEW

    def take(self, seq: int) -> int:
        """Note that a NEW message goes into the queue; returns how many of its first rows are used already."""
        self.received, self.pending, self.anchored = seq, self.pending + 1, True
        return self.begun if seq == self.consumed + 1 else 0

    def recover(self, row: Origin) -> int:
        """Continue after a stored row. Returns how many rows before it were used up but are not stored."""
        missing = (row.seq - self.consumed - 1) * self.rows + row.row - self.begun
        whole = row.row + 1 == row.rows
        self.received = self.consumed = row.seq - (not whole)
        self.begun = 0 if whole else row.row + 1
        return missing

    def use(self, seq: int) -> None:
        """Note that a message has left the queue, used up."""
        self.pending, self.anchored = max(0, self.pending - 1), True
        if seq > self.consumed:
            self.consumed, self.begun = seq, 0
            self.received = max(self.received, seq)


@dataclass
class SavedLedger:
    """The ledger and its streams, by sender and slot, as a checkpoint holds them; by default those of a new run."""

    ledger: Ledger = field(default_factory=Ledger)
    streams: dict[tuple[int, int], StreamLedger] = field(default_factory=dict)

    @classmethod
    def load(cls, state: dict[str, Any]) -> Self:
        """Inverse of `state`. Raises KeyError, TypeError or ValueError if the state is malformed."""
        ledger = Ledger(**{name: int(value) for name, value in state["ledger"].items()})
        streams = {}
        for entry in state["streams"]:
            sender, slot, rows, consumed, begun = map(int, entry)
            streams[sender, slot] = StreamLedger(rows, consumed, consumed, begun, anchored=True)
        return cls(ledger, streams)

    def recover(self, rows: Iterable[Origin]) -> None:
        """Count rows that a learner stored before it was killed, in the order in which it added them."""
        for row in rows:
            stream = self.streams.setdefault((row.sender, row.slot), StreamLedger(row.rows, anchored=True))
            self.ledger.undone += stream.recover(row)
            self.ledger.used += 1

    def merge(self, other: Self) -> Self:
        """What became of the rollouts of two ranks, each of which has the streams of the last checkpoint as well."""
        sums = {name: count + asdict(other.ledger)[name] for name, count in asdict(self.ledger).items()}
        streams = dict(self.streams)
        for key, theirs in other.streams.items():
            own = streams.setdefault(key, theirs)
            streams[key] = max(own, theirs, key=lambda each: (each.consumed, each.begun))
        return type(self)(Ledger(**sums), streams)

    def state(self) -> dict[str, Any]:
        """Plain values; a stream is [sender, slot, rows, consumed, begun]."""
        streams = [[*key, each.rows, each.consumed, each.begun] for key, each in self.streams.items()]
        return {"ledger": asdict(self.ledger), "streams": streams}
