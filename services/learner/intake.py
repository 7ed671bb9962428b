"""The learner's conversations with actors: who may send, what is new, what is acknowledged.

Rollouts are taken out of the socket as they come, because a HELLO behind them would wait as well; the credit that was
given bounds how many there are. ACK goes out when an update has used the last of a message's rows. It covers every
message before it, so one that is refused or stale is acknowledged in its turn. Such messages use up credit and fill no
batch: once no stream has any left, an update takes the rows that there are, and all credit returns.

An actor that has gone is remembered for as long as there is room: a broken connection looks the same, and what comes
over the next one must not be trained twice. What is remembered is part of the checkpoint, for the same reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from zerobeast.common.errors import ConfigError, RemoteProtocolError
from zerobeast.common.transport import Incoming, ServerPort
from zerobeast.common.wire.messages import MAX_WINDOW, Header, Kind
from zerobeast.common.wire.session import Arrival, Session, SessionTable
from zerobeast.services.learner.admission import Terms, mismatch, read_rollouts, task_of
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger, StreamPosition
from zerobeast.services.learner.queue import Message, RolloutQueue, Rows
from zerobeast.services.learner.window import LONG_AGO, exhausted, window

log = logging.getLogger(__name__)

GRANT_PERIOD_S = 1.0  #: to see who delivers
MESSAGES_PER_TURN = 256  #: a flood of small messages must not keep the loop from updates

#: Sets the run up for the first actor and returns its terms and queue. Raises ConfigError where it cannot be learned.
Begin = Callable[[Terms], tuple[Terms, RolloutQueue]]


class Intake:
    """The serving end of the rollout plane.

    Args:
      port: to receive from; the caller closes it.
      epoch: random id of this start.
      window: messages that a stream may have unacknowledged.
      begin: called with the first acceptable HELLO.
      record: of the run so far.
    """

    def __init__(self, port: ServerPort, epoch: int, window: int, begin: Begin, record: SavedLedger) -> None:
        self.port = port
        self._configured = window
        self._granted = window  #: what WELCOME and ACK say now
        self.terms: Terms | None = None
        self.queue: RolloutQueue | None = None
        self._begin = begin
        self.ledger = record.ledger
        self._sessions: SessionTable[StreamLedger] = SessionTable(epoch)
        self._left: dict[int, None] = {}  #: actors that have gone, the first first
        self._changed = True  #: who takes part, since the window was last computed
        self._grant_at = 0.0
        for stream in record.streams:
            header = Header(Kind.HELLO, stream.sender, stream.slot)
            self._sessions.open(header, stream.ledger(), now=0.0).asked_at = LONG_AGO
            self._left[stream.sender] = None

    @property
    def peers(self) -> int:
        """Actors that are connected."""
        return len(self._sessions.senders - self._left.keys())

    def record(self) -> SavedLedger:
        """What a checkpoint has to hold, so that every rollout is used once over all starts of the learner."""
        begun = self.queue.begun if self.queue else None
        parts = {(begun[0].sender, begun[0].slot): begun[1]} if begun else {}
        return SavedLedger(
            self.ledger,
            [
                StreamPosition.of(
                    session.sender, session.slot, session.state, parts.get((session.sender, session.slot), 0)
                )
                for session in self._sessions
            ],
        )

    def page(self) -> dict[str, Any]:
        """For the health page; a stream is [sender, slot, rollouts of a message, received, consumed, begun]."""
        streams = [
            [each.sender, each.slot, each.state.rows, each.state.received, each.state.consumed, each.state.begun]
            for each in self._sessions
        ]
        return {
            "peers": self.peers,
            "refused": sum(self.port.refused.values()),
            "refused_by_reason": dict(self.port.refused),
            "dropped": self.port.dropped,
            "rollouts_by_fate": self.ledger.page(),
            "queue_rows": self.queue.rollouts if self.queue else 0,
            "queue_capacity": sum(session.state.rows for session in self._here) * self._granted,
            "streams": streams,
            "epoch": self._sessions.epoch,
        }

    def start(self, terms: Terms, queue: RolloutQueue) -> None:
        """Fix what every actor has to offer from now on."""
        self.terms, self.queue = terms, queue

    def receive(self, now: float) -> None:
        """Take what is there."""
        self._notice(now)
        self._grant(now)
        for _ in range(MESSAGES_PER_TURN):
            message = self.port.receive() if self._reads else None
            if message is None:
                break
            self._handle(message, now)

    def settle(self, oldest: int) -> list[Message]:
        """Let go of rollouts whose policy is older than this version; returns and acknowledges what is done by that."""
        if self.queue is None:
            return []
        self.queue.expire(oldest)
        done = self.queue.release()
        self._acknowledge(done)
        return done

    def take(self, now: float) -> Rows | None:
        """A batch to learn from: a short one if no stream has credit left to fill it; None: wait for more."""
        if self.queue is None:
            return None
        return self.queue.take(short=self.queue.usable > 0 and exhausted(self._granted, self._here, now))

    def use(self, messages: list[Message], rows: int, *, learned: bool) -> None:
        """Book the rows of a batch, and acknowledge the messages that it has used up."""
        if learned:
            self.ledger.used += rows
        else:
            self.ledger.skipped += rows
        self._acknowledge(messages)

    def _acknowledge(self, messages: list[Message]) -> None:
        """Tell the senders which messages are done."""
        for message in messages:
            self.ledger.add(message)
            session = self._session(message.sender, message.slot)
            if session is not None:
                session.state.use(message.seq)
                self._ack(session, message.seq)

    def farewell(self) -> None:
        """Tell every actor that the learner ends."""
        for session in self._sessions:
            self.port.send(Header(Kind.BYE, session.sender, session.slot, self._sessions.epoch))

    @property
    def _reads(self) -> bool:
        """Whether no more waits than credit was given for; else the rest has to wait in the socket for an update."""
        return self.queue is None or not self.queue.ready or len(self.queue) <= self._granted * len(self._sessions)

    @property
    def _here(self) -> Iterator[Session[StreamLedger]]:
        """The streams of actors that are connected."""
        return (session for session in self._sessions if session.sender not in self._left)

    def _handle(self, message: Incoming, now: float) -> None:
        header = message.header
        try:
            if header.kind is Kind.HELLO:
                self._greet(header, now)
            elif header.kind is Kind.ROLLOUT:
                self._rollout(message, now)
            elif header.kind is Kind.BYE:
                self._leave(header.sender)
            else:
                raise RemoteProtocolError(f"{header.kind.name} does not belong on the rollout plane", "kind")
        except RemoteProtocolError as error:
            self.port.refuse(error)

    def _greet(self, header: Header, now: float) -> None:
        try:
            theirs, session = self._admitted(header, now)
        except RemoteProtocolError as error:
            log.warning("refused an actor: %s", error)
            self.port.reject(header, error, epoch=self._sessions.epoch)
            return
        if session is not None:
            assert self.terms is not None, "an admitted actor has a run"
            self.ledger.undone += session.state.begin(theirs.first)
            session.state.task = task_of(theirs, self.terms)
            self._welcome(session)

    def _admitted(self, header: Header, now: float) -> tuple[Terms, Session[StreamLedger] | None]:
        """The terms of an actor that can take part, and its session; None where it could not hear of it yet.

        Raises:
          RemoteProtocolError: they are impossible, not those of the run, or there are too many actors.
        """
        theirs = Terms.from_wire(header.body[0])
        if self.terms is None:
            self._start_for(theirs)
        assert self.terms is not None, "the run has started"
        if sentence := mismatch(theirs, self.terms):
            raise RemoteProtocolError(sentence, "terms")
        session, hears = self._sessions.of(header), self.port.hears(header.sender)
        if session is not None and hears and header.sender in self._left:  # it said BYE over a connection that stays
            del self._left[header.sender]
            self._changed = True
        if session is not None or not hears:
            return theirs, session
        while self._sessions.full and self._left:
            self._forget(next(iter(self._left)))
        if self._sessions.full:
            raise RemoteProtocolError("too many actors", "busy")
        self._changed = True
        return theirs, self._sessions.open(header, StreamLedger(theirs.num_envs), now)

    def _start_for(self, theirs: Terms) -> None:
        try:
            self.start(*self._begin(theirs))
        except ConfigError as error:
            raise RemoteProtocolError(str(error), "terms") from error

    def _welcome(self, session: Session[StreamLedger]) -> None:
        assert self.terms is not None, "an admitted actor has a run"
        assert self.terms.policy is not None, "a run has a policy"
        terms = {
            "window": self._granted,
            "policy": self.terms.policy.to_wire(),
            "received": session.state.received,
        }
        seq = session.state.consumed
        self.port.send(Header(Kind.WELCOME, session.sender, session.slot, self._sessions.epoch, seq, (terms,)))

    def _rollout(self, message: Incoming, now: float) -> None:
        header = message.header
        session = self._sessions.of(header)
        if session is None:
            unknown = RemoteProtocolError("a rollout of an unknown session: say HELLO first", "session")
            self.port.reject(header, unknown, epoch=self._sessions.epoch)
            return
        arrival = session.state.arrival(header.seq)
        if arrival is Arrival.REPEATED:
            self._ack(session, header.seq)
        if arrival not in (Arrival.NEW, Arrival.AHEAD):
            return
        if session.state.pending >= MAX_WINDOW:
            raise RemoteProtocolError(f"{session.state.pending} rollouts of one stream wait already", "window")
        if arrival is Arrival.AHEAD:
            gap = RemoteProtocolError("a rollout before this one is missing: say HELLO and send all again", "session")
            self.port.reject(header, gap, epoch=self._sessions.epoch)
            return
        session.asked_at = now
        self._take(session, message, now)

    def _take(self, session: Session[StreamLedger], message: Incoming, now: float) -> None:
        """Queue a NEW message, without the first rows if the checkpoint has them; refused, it still gets its turn."""
        assert self.queue is not None, "a session is of a run"
        assert self.terms is not None, "a session is of a run"
        header, ledger = message.header, session.state
        used = ledger.take(header.seq)
        entry = Message(header.sender, header.slot, header.seq, ledger.rows - used, at=now, task=ledger.task)
        try:
            rows, episodes = read_rollouts(message, self.terms, self.queue.allocate)
            if len(rows) <= used:
                raise RemoteProtocolError(f"a ROLLOUT of {len(rows)} rows, of which {used} are used already", "payload")
        except RemoteProtocolError as error:
            self.port.refuse(error)
            self.queue.put(entry._replace(fate="refused"), None)
            return
        if malformed := len(header.body[1]) - len(episodes):  # the rows are good, whatever is reported of episodes
            self.port.refuse(
                RemoteProtocolError(f"{malformed} episodes without a finite return and a length", "episodes")
            )
        version = int(rows["policy_version"].min())
        self.queue.put(entry._replace(rollouts=len(rows) - used, episodes=episodes, version=version), rows[used:])

    def _ack(self, session: Session[StreamLedger], seq: int) -> None:
        body = (session.state.consumed, self._granted)
        self.port.send(Header(Kind.ACK, session.sender, session.slot, self._sessions.epoch, seq, body))

    def _session(self, sender: int, slot: int) -> Session[StreamLedger] | None:
        return self._sessions.of(Header(Kind.ACK, sender, slot, self._sessions.epoch))

    def _grant(self, now: float) -> None:
        """Widen the window where so few streams could never fill a batch, and say so: they may all be waiting."""
        if self.queue is None or not (self._changed or now >= self._grant_at):
            return
        self._changed, self._grant_at = False, now + GRANT_PERIOD_S
        granted = window(self._configured, self.queue.batch_size, self._here, now)
        if granted == self._granted:
            return
        self._granted = granted
        for session in self._sessions:
            self._ack(session, session.state.consumed)

    def _notice(self, now: float) -> None:
        """Take note of actors that came or went, or never did more than greet."""
        for sender, here in self.port.changes().items():
            if here:
                self._changed |= sender in self._left
                self._left.pop(sender, None)
            else:
                self._leave(sender)
        for session in self._sessions.unused(now):
            self.ledger.undone -= session.state.consumed * session.state.rows  # what its HELLO alone has said
            self._sessions.close(session)
            if session.sender not in self._sessions.senders:
                self._left.pop(session.sender, None)

    def _leave(self, sender: int) -> None:
        """Whatever of it still waits in the socket is taken all the same."""
        if sender in self._sessions.senders:
            self._left[sender] = None
            self._changed = True

    def _forget(self, sender: int) -> None:
        self._sessions.leave(sender)
        self._left.pop(sender, None)
