"""The learner's conversations with actors: who may send, what is new, what is acknowledged.

Rollouts are received as they arrive, because a HELLO behind them would otherwise wait too; the granted credit bounds
their number ("Backpressure" in the README here).

The record of an actor that has gone is kept as long as there is room: a broken connection looks the same, and what
comes over the next one must not be trained on twice. These records are part of the checkpoint, for the same reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from math import inf
from typing import Any

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.text import split_ids
from zerobeast.common.transport import Incoming, ServerPort
from zerobeast.common.wire.episodes import episodes_of, read_lost
from zerobeast.common.wire.messages import MAX_WINDOW, Header, Kind
from zerobeast.common.wire.session import YIELDS_S, Arrival, Session, SessionTable
from zerobeast.services.learner.acting import ActingProcesses
from zerobeast.services.learner.admission import Terms, mismatch, read_rollouts
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger
from zerobeast.services.learner.plane import RolloutPlane
from zerobeast.services.learner.queue import Message, RolloutQueue, Rows
from zerobeast.services.learner.window import LONG_AGO, admit, all_waiting, capacity, is_exhausted, window

GRANT_PERIOD_S = 1.0  #: between checks of which actors deliver


class Intake(RolloutPlane):
    """The serving end of the rollout plane of a run.

    Args:
      port: to receive from; the caller closes it.
      epoch: random id of this start.
      window: messages that a stream may have in flight.
      terms: what every actor has to offer.
      queue: for incoming rollouts.
      record: of the run so far.
      ahead: messages that a stream may begin beyond its window, while the learner uses those in flight.
      lock_step: whether a batch holds a rollout of every environment, in an order that arrival does not affect.
    """

    def __init__(
        self,
        port: ServerPort,
        epoch: int,
        window: int,
        terms: Terms,
        queue: RolloutQueue,
        record: SavedLedger,
        *,
        ahead: int = 0,
        lock_step: bool = False,
    ) -> None:
        super().__init__(port, epoch)
        self._lock_step = lock_step
        self._configured, self._ahead = window, ahead
        #: messages that a stream may have begun without an acknowledgement
        self._window = min(MAX_WINDOW, window + ahead)
        self.usable = inf  #: rows that are used before a rollout that begins now gets too old; infinite: none does
        self.version = 0  #: of the newest policy
        self._capacity = 0  #: rows that may be outstanding, at most those of all windows
        self._spare = -1.0  #: rows that may be outstanding beyond those of all windows
        self.terms, self.queue, self.ledger = terms, queue, record.ledger
        self._sessions: SessionTable[StreamLedger] = SessionTable(epoch)
        self._left: dict[int, None] = {}  #: actors that have gone, in that order
        self._changed = True  #: whether actors came or left since the window was last computed
        self._grant_at = 0.0
        self._now = 0.0  #: when messages were received last
        self.acting = ActingProcesses()
        self.progress: Callable[[], float] = lambda: 0.0  #: the share of the run that is trained, from 0 to 1
        self._founded_at: float | None = None  #: when the first HELLO came
        for (sender, slot), ledger in record.streams.items():
            self._sessions.open(Header(Kind.HELLO, sender, slot), ledger, now=0.0).asked_at = LONG_AGO
            self._left[sender] = None

    @property
    def peers(self) -> int:
        """Actors that are connected."""
        return len(self._sessions.senders - self._left.keys())

    def record(self) -> SavedLedger:
        """What a checkpoint has to hold, so that every rollout is used once over all starts of the learner."""
        streams = {(each.sender, each.slot): each.state for each in self._sessions}
        if begun := self.queue.begun:
            message, used = begun
            key = message.sender, message.slot
            if key in streams:
                streams[key] = replace(streams[key], begun=streams[key].begun + used)
        return SavedLedger(self.ledger, streams)

    def page(self) -> dict[str, Any]:
        """For the health page."""
        return super().page() | {
            "acting": len(self.acting),
            "rollouts_by_fate": asdict(self.ledger),
            "queue_rows": self.queue.rollouts,
            "queue_capacity": self._capacity,
            "streams_held": sum(each.state.outstanding < self._window for each in self._here),
            "streams": [
                [each.sender, each.slot, each.state.rows, each.state.received, each.state.consumed, each.state.begun]
                for each in self._sessions
            ],
        }

    def drop_stale(self, oldest: int) -> list[Message]:
        """Drop rollouts whose policy is older than this version; acknowledges and returns the messages done by that."""
        self.queue.expire(oldest)
        return self._release()

    def take(self, now: float) -> Rows | None:
        """A batch to learn from: a short one if no stream has credit left to fill it; None: wait for more."""
        if self._lock_step:
            if not all_waiting(self.queue.batch_size, self._here):
                return None
            self.queue.sort()
            return self.queue.take(short=True)
        return self.queue.take(short=self.queue.usable > 0 and is_exhausted(self._here, now))

    def use(self, rows: int, *, learned: bool) -> list[Message]:
        """Count the rows of the batch that was taken; acknowledges and returns the messages that it has used up."""
        if learned:
            self.ledger.used += rows
        else:
            self.ledger.skipped += rows
        return self._release()

    def _release(self) -> list[Message]:
        """Drop the rows that were taken; acknowledges and returns the messages that are done by that."""
        done = self.queue.release()
        used: dict[tuple[int, int], Session[StreamLedger]] = {}
        for message in done:
            self.ledger.add(message)
            session = self._sessions.of(Header(Kind.ACK, message.sender, message.slot, self.epoch))
            if session is not None:
                session.state.use(message.seq)
                used[message.sender, message.slot] = session
        if done:
            self._acknowledge(used)
        return done

    def _acknowledge(self, used: dict[tuple[int, int], Session[StreamLedger]]) -> None:
        """Send ACK to the streams of used messages, and to those that may begin another message because of that."""
        for each in self._admit():
            used[each.sender, each.slot] = each
        for each in used.values():
            self._ack(each, each.state.consumed)

    def _admit(self) -> list[Session[StreamLedger]]:
        """Raise the limits of streams; returns those that may begin more messages than before."""
        return admit(self._window, self._measure_room(), self._here, self._now)

    def _measure_room(self) -> float:
        """Rows that may be outstanding."""
        here = list(self._here)
        room = inf if self._lock_step else capacity(self.usable, self.queue.batch_size, here)
        windows = self._window * sum(each.state.rows for each in here)
        self._spare, self._capacity = room - windows, int(min(room, windows))
        return room

    def farewell(self) -> None:
        """Send BYE to every actor: the learner ends."""
        for session in self._sessions:
            self.port.send(Header(Kind.BYE, session.sender, session.slot, self.epoch))

    @property
    def reads(self) -> bool:
        """Whether to receive: not if a batch is ready and more waits than was granted; the rest waits in the socket."""
        full = self.queue.usable >= self.queue.batch_size  # those of a batch that is learned from now are among them
        room = not full or len(self.queue) <= self._window * len(self._sessions)
        return room and super().reads

    def receive(self, now: float) -> None:
        """Take the messages that arrived, then grant what they leave room for."""
        super().receive(now)
        self._grant(now)

    @property
    def _here(self) -> Iterator[Session[StreamLedger]]:
        """The streams of actors that are connected."""
        return (session for session in self._sessions if session.sender not in self._left)

    def admit(self, header: Header, now: float) -> None:
        """Send WELCOME to an actor that fits the run, unless it could not receive that yet.

        While no rollout has come, all that there is of the run follows from its first HELLO. Another environment may
        begin it anew once the actors of the first have left, or YIELDS_S later.
        """
        theirs = Terms.from_wire(header.body[0])
        self._founded_at = now if self._founded_at is None else self._founded_at
        if sentence := mismatch(theirs, self.terms):
            if self.begin is None or not self._differs_in_env(theirs):
                raise RemoteProtocolError(sentence, "terms")
            if self.peers and now - self._founded_at <= YIELDS_S:
                raise RemoteProtocolError(f"{sentence}, of which no rollout has come yet", "busy")
            self._replaced = True
            super().admit(header, now)
            return
        session, reachable = self._sessions.of(header), self.port.hears(header.sender)
        if session is not None and reachable and header.sender in self._left:  # it sent BYE, and its connection stays
            del self._left[header.sender]
            self._changed = True
        if session is None and reachable:
            session = self._open_session(header, theirs, now)
            self._measure_room()
        if session is not None:
            self.ledger.undone += session.state.begin(theirs.first)
            session.state.task = split_ids(self.terms.env.env_id).index(theirs.env.env_id)
            session.state.follows = header.body[0].get("progress") is True
            messages = self._window if self._spare >= 0 else int(session.asked_at is None)
            session.state.grant(session.state.consumed + messages, now)
            self._welcome(session)

    def _differs_in_env(self, theirs: Terms) -> bool:
        """Whether these terms would fit if the run had begun with this environment."""
        tasks, env = self.terms.env.env_id, theirs.env.among(self.terms.env.env_id)
        fits = env.env_id == tasks and not mismatch(theirs, replace(self.terms, env=env, policy=theirs.policy))
        return fits and env != self.terms.env

    def _open_session(self, header: Header, theirs: Terms, now: float) -> Session[StreamLedger]:
        """Open a session; if there is no room, it replaces those of an actor that has gone."""
        while self._sessions.full and self._left:
            gone = next(iter(self._left))
            self._sessions.leave(gone)
            del self._left[gone]
        if self._sessions.full:
            raise RemoteProtocolError("too many actors", "busy")
        self._changed = True
        return self._sessions.open(header, StreamLedger(theirs.num_envs), now)

    def _welcome(self, session: Session[StreamLedger]) -> None:
        assert self.terms.policy is not None, "a run has a policy"
        terms = {
            "window": session.state.outstanding,
            "policy": self.terms.policy.to_wire(),
            "unroll_length": self.terms.unroll_length,
            "received": session.state.received,
            **({"progress": self.progress()} if session.state.follows else {}),
        }
        seq = session.state.consumed
        self.port.send(Header(Kind.WELCOME, session.sender, session.slot, self.epoch, seq, (terms,)))

    def rollout(self, message: Incoming, now: float) -> None:
        """Take a ROLLOUT, if it is of a session and was not taken before."""
        header = message.header
        session = self._sessions.of(header)
        if session is None:
            super().rollout(message, now)
            return
        arrival = session.state.arrival(header.seq)
        if arrival is Arrival.REPEATED:
            self._ack(session, header.seq)
        if arrival not in (Arrival.NEW, Arrival.AHEAD):
            return
        if session.state.pending >= MAX_WINDOW:
            raise RemoteProtocolError(f"{session.state.pending} rollouts of one stream wait already", "window")
        if arrival is Arrival.AHEAD:
            self.unknown(header, "a rollout before this one is missing: send HELLO and all rollouts again")
            return
        session.asked_at = now
        self._take(session, message, now)

    def _take(self, session: Session[StreamLedger], message: Incoming, now: float) -> None:
        """Queue a NEW message without the rows that were used already; a refused one keeps its place, without rows."""
        header, ledger = message.header, session.state
        used = ledger.take(header.seq)
        _, entries, acting = header.body
        left = ledger.rows - used
        entry = Message(header.sender, header.slot, header.seq, left, at=now, task=ledger.task, acting=acting)
        try:
            rows = read_rollouts(header, message.into, self.terms, self.queue.allocate)
            if len(rows) <= used:
                raise RemoteProtocolError(f"a ROLLOUT of {len(rows)} rows, of which {used} are used already", "payload")
        except RemoteProtocolError as error:
            self.port.refuse(error)
            self.queue.put(entry._replace(fate="refused"), None)
            return
        self.acting.note(acting, int(rows["policy_version"].max()), now)
        episodes, lost = episodes_of(entries, self.port.refuse), read_lost(entries)
        version = min(int(rows["policy_version"].min()), self.version)  # an earlier start may have got further
        entry = entry._replace(rollouts=len(rows) - used, episodes=episodes, lost=lost, version=version, begun=used)
        self.begin = None
        self.queue.put(entry, rows[used:], by_age=self.usable < inf)

    def _ack(self, session: Session[StreamLedger], seq: int) -> None:
        body = (session.state.consumed, session.state.outstanding, self.progress() if session.state.follows else None)
        self.port.send(Header(Kind.ACK, session.sender, session.slot, self.epoch, seq, body))

    def _grant(self, now: float) -> None:
        """Adapt the window so that even few streams can fill a batch, and grant it: they may all be waiting."""
        if not self._changed and now < self._grant_at:
            return
        self._changed, self._grant_at = False, now + GRANT_PERIOD_S
        if not self._lock_step:
            needed = window(self._configured, self.queue.batch_size, self._here, now)
            self._window = min(MAX_WINDOW, needed + self._ahead)
        self._acknowledge({})

    def _notice(self, now: float) -> None:
        """Note actors that came or went, or never sent more than a HELLO."""
        self._now = now
        for sender, here in self.port.changes().items():
            if here:
                self._changed |= sender in self._left
                self._left.pop(sender, None)
            else:
                self.leave(sender)
        for session in self._sessions.find_unused(now):
            self.ledger.undone -= session.state.consumed * session.state.rows  # counted because of its HELLO alone
            self._sessions.close(session)
            if session.sender not in self._sessions.senders:
                self._left.pop(session.sender, None)
        self.acting.forget(now)

    def leave(self, sender: int) -> None:
        """Note that an actor has gone; its messages that still wait in the socket are taken all the same."""
        if sender in self._sessions.senders:
            self._left[sender] = None
            self._changed = True
