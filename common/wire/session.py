"""The server's half of conversations, in a table. No sockets; time is an argument.

A session's last answer is kept, so that a repeated request gets the same answer and nothing happens twice. Every start
of a server draws a random epoch; requests of another epoch are answered with UNKNOWN_SESSION. `stream` is the
client's half.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from zerobeast.common.wire.messages import Frames, Header, Kind

UNUSED_S = 60.0  #: after which a server closes a session that has asked for nothing since it was opened
#: after which a description that nothing has followed gives way: earlier than clients stop trying
YIELDS_S = 30.0
SWEEP_PERIOD_S = 1.0

S = TypeVar("S")


class Arrival(Enum):
    """What a request means to a server."""

    NEW = auto()  #: do it
    REPEATED = auto()  #: already answered: send `Session.reply` again
    PENDING = auto()  #: already being worked on: send HERE, or nothing
    STALE = auto()  #: older than the newest: ignore it
    AHEAD = auto()  #: an earlier one is missing, on a plane where none may be


@dataclass
class Session(Generic[S]):
    """The server's half of one conversation."""

    sender: int
    slot: int
    state: S
    opened_at: float
    asked_at: float | None = None  #: when it last asked for something
    seq: int = 0
    welcome: dict[str, Any] | None = None
    reply: tuple[Header, Frames] | None = None  #: the answer to `seq`, None while it is worked on

    def arrival(self, seq: int) -> Arrival:
        """Classify a request by its number and, if it is NEW, make it the current one."""
        if seq == self.seq and seq > 0:
            return Arrival.PENDING if self.reply is None else Arrival.REPEATED
        if seq <= self.seq:
            return Arrival.STALE
        self.seq, self.reply = seq, None
        return Arrival.NEW


class SessionTable(Generic[S]):
    """All conversations of a server."""

    def __init__(self, epoch: int, limit: int = 4096) -> None:
        self.epoch = epoch  #: random id of this start
        self.limit = limit  #: sessions beyond which HELLO is answered with BUSY
        self._sessions: dict[int, dict[int, Session[S]]] = {}  # by sender and slot
        self._count = 0
        self._sweep_at = 0.0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Session[S]]:
        return iter([session for slots in self._sessions.values() for session in slots.values()])

    @property
    def full(self) -> bool:
        """Whether another session would be too many."""
        return self._count >= self.limit

    @property
    def senders(self) -> Set[int]:
        """The clients that have a session: a live view."""
        return self._sessions.keys()

    def open(self, header: Header, state: S, now: float) -> Session[S]:
        """Add the session that a HELLO asked for."""
        session = Session(header.sender, header.slot, state, now)
        slots = self._sessions.setdefault(header.sender, {})
        self._count += header.slot not in slots
        slots[header.slot] = session
        return session

    def of(self, header: Header) -> Session[S] | None:
        """The session of a HELLO, BYE or request, or None if this start of the server has none.

        HELLO and BYE need not have the epoch: a client that leaves may not have got WELCOME yet.
        """
        if header.kind not in (Kind.HELLO, Kind.BYE) and header.epoch != self.epoch:
            return None
        return self._sessions.get(header.sender, {}).get(header.slot)

    def close(self, session: Session[S]) -> None:
        slots = self._sessions.get(session.sender, {})
        if slots.pop(session.slot, None) is not None:
            self._count -= 1
        if not slots:
            self._sessions.pop(session.sender, None)

    def leave(self, sender: int) -> list[Session[S]]:
        """Remove every session of a client that has gone and return them."""
        gone = list(self._sessions.pop(sender, {}).values())
        self._count -= len(gone)
        return gone

    def find_unused(self, now: float, awake_since: float = 0.0) -> list[Session[S]]:
        """Sessions that have asked for nothing for UNUSED_S: a HELLO costs its sender nothing. Looks once a second.

        No message could arrive before `awake_since`.
        """
        if now < self._sweep_at:
            return []
        self._sweep_at = now + SWEEP_PERIOD_S
        silent = [session for session in self if session.asked_at is None]
        return [session for session in silent if now - max(session.opened_at, awake_since) > UNUSED_S]
