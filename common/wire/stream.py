"""The client's half of a conversation, without sockets. Time is an argument. `session` is the server's half.

A stream sends HELLO every 200 ms until WELCOME comes, because a subscription needs an unknown time to take effect and a
server may not be there yet. Afterwards it has at most one request outstanding; one that stays unanswered is sent again
under the same number, less and less often. A server that does not have the stream (it restarted, or reaped it) answers
with an ERROR, and the stream sends HELLO again. A server that has just started sends HERE to a client that reaches it,
so that no client has to wait out a silence. A server also sends HERE for a repeated request that it is still working
on, so one that stays silent after a repetition is behind a dead connection.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from zerobeast.common.errors import RemoteProtocolError, RequestRefused
from zerobeast.common.text import printable
from zerobeast.common.wire.messages import ANSWERS, MAX_INTEGER, Frames, Header, Kind, Reason

HELLO_PERIOD_S = 0.2
RESEND_AFTER_S = 2.0
RESEND_LIMIT_S = 8.0  #: the wait doubles with each repetition, or a slow link would carry nothing but repetitions
UNSENT_AFTER_S = 0.01  #: until a request that was not sent, because the server is absent or behind, is offered again
BUSY_PERIOD_S = 1.0
PROMPT_SETBACKS = 3  #: setbacks that are acted on at once; each further one doubles the pause
LASTING_S = 2.0  #: an answer in a session that has been open for this long clears the setbacks before it


class Reply(Enum):
    """What a message from the server means for a stream."""

    WELCOME = auto()  #: the session is open; the terms are in `Stream.terms`
    ANSWER = auto()  #: the outstanding request is answered
    LOST = auto()  #: the server no longer has this stream or is shutting down; the stream sends HELLO again
    STALE = auto()  #: late or repeated: ignore it


class Stream:
    """The client's half of one conversation."""

    def __init__(self, sender: int, slot: int, terms: dict[str, Any], server: str) -> None:
        self.sender = sender
        self.slot = slot  #: which of the client's streams this is
        self.hello_terms = terms  #: what HELLO asks for
        self.terms: dict[str, Any] = {}  #: of the newest WELCOME
        self.server, self._inside, _ = server.partition(" at inproc:")  #: how error sentences name the other side
        self.epoch = 0
        self.seq = 0
        self.open = False
        self.heard_at = -1.0  #: when the server last sent something; negative before
        self.stale = 0  #: replies since then that answered nothing this stream had asked
        self.busy = ""  #: why the server has no room for this stream, if it reported that
        self.trouble = ""  #: a sentence on what the server keeps doing instead of answering
        self.setbacks = 0  #: those that were followed by a pause
        self._in_a_row = 0  #: setbacks since a session lasted
        self._rejects_since: float | None = None  #: the first rejected answer since a session lasted
        self.useless_s = 0.0  #: between it and the newest
        self._pause_s = 0.0  #: before the next HELLO, because of those setbacks
        self._opened_at = 0.0
        self._asked_at = -1.0  #: since when the server owes a sign of life
        self._outstanding: tuple[Header, Frames] | None = None
        self._farewell: Header | None = None  #: BYE to a session whose answer was rejected
        self._send_at = self._quiet_until = 0.0
        self._patience_s = RESEND_AFTER_S

    @property
    def waiting(self) -> bool:
        return self._outstanding is not None

    def request(self, kind: Kind, body: tuple[Any, ...], frames: Frames, now: float) -> None:
        """Queue the next request; `due` hands it out. The frames must stay unchanged until it is answered."""
        assert self.open, "no request before WELCOME"
        assert not self.waiting, "one request at a time"
        self.seq += 1
        self._asked_at = now
        self._outstanding = (self._header(kind, body), frames)
        self._send_at, self._patience_s = now, RESEND_AFTER_S

    def due(self, now: float) -> tuple[Header, Frames] | None:
        """What to send now: a BYE, a HELLO, a new request or a repeated one."""
        if self._farewell is not None:
            farewell, self._farewell = self._farewell, None
            return farewell, ()
        if now < self._send_at:
            return None
        if not self.open:
            self._send_at = now + HELLO_PERIOD_S
            self._asked_at = now if self._asked_at < 0 else self._asked_at
            return Header(Kind.HELLO, self.sender, self.slot, body=(self.hello_terms,)), ()
        if self._outstanding is not None:
            self._send_at = now + UNSENT_AFTER_S
        return self._outstanding

    def note_sent(self, now: float) -> None:
        """Note that what `due` handed out was sent; otherwise `due` soon hands it out again."""
        if self.open:
            self._send_at = max(self._send_at, now + self._patience_s)
            self._patience_s = min(2 * self._patience_s, RESEND_LIMIT_S)

    def ask_again(self, now: float) -> None:
        """Repeat at once what is unanswered: the connection is new."""
        self._send_at, self._patience_s = max(now, self._quiet_until), RESEND_AFTER_S

    def deadline(self) -> float:
        """When `due` next has something to send; infinity while there is nothing."""
        return self._send_at if not self.open or self.waiting else float("inf")

    def silent_s(self, now: float) -> float:
        """Seconds without a sign of life from a server that owes one; 0 while it owes nothing."""
        return 0.0 if self.open and not self.waiting else now - max(self.heard_at, self._asked_at)

    def is_preparing(self, now: float, silent_s: float) -> bool:
        """Whether the server works on opening the session: its HERE to HELLO came within the last `silent_s`."""
        return not self.open and not self.trouble and now - silent_s <= self.heard_at >= self._asked_at >= 0

    def complaint(self, malformed: int, silence_s: float) -> str:
        """A sentence on what is wrong with the server after `silence_s` without answers and `malformed` bad replies."""
        if self.busy:
            return f"no room at the {self.server} ({self.busy}) for {silence_s:g} s"
        if not malformed and not self.stale:
            return f"no answer from the {self.server} for {silence_s:g} s"
        found = f"{malformed} replies were malformed, {self.stale} had another epoch or seq than what was asked"
        return f"no usable answer from the {self.server} for {silence_s:g} s: {found}"

    def expects(self, header: Header) -> bool:
        """Whether a message answers the outstanding request, so that its payload is worth receiving."""
        return (
            self._outstanding is not None
            and header.kind is ANSWERS.get(self._outstanding[0].kind)
            and (header.epoch, header.seq) == (self.epoch, self.seq)
        )

    def accept(self, header: Header, now: float) -> Reply:
        """Take a message for this slot.

        Raises:
          ConfigError: the server refuses for good.
          RemoteProtocolError: it is a WELCOME that cannot open a session.
        """
        if (about_the_session := _ABOUT_THE_SESSION.get(header.kind)) is not None:
            return about_the_session(self, header, now)
        if not self.expects(header):
            return self._ignore()
        self._outstanding = None
        self.note_answer(now)
        return Reply.ANSWER

    def note_answer(self, now: float) -> None:
        """Note that the session works; `accept` does this on planes with requests."""
        self.heard_at, self.stale = now, 0
        if now - self._opened_at >= LASTING_S:
            self._in_a_row, self._pause_s, self.trouble = 0, 0.0, ""
            self._rejects_since, self.useless_s = None, 0.0

    def bye(self) -> Header:
        """The BYE that ends the session, whether or not WELCOME has come yet."""
        return self._header(Kind.BYE, ())

    def reject(self, why: str, now: float) -> None:
        """End a session whose answer cannot be used: asked again, the server would repeat it."""
        self._farewell = self.bye()
        self._rejects_since = now if self._rejects_since is None else self._rejects_since
        self.useless_s = now - self._rejects_since
        self._lose(f"sends what cannot be used ({why})", now)

    def count_setback(self, what: str, now: float) -> bool:
        """Count a setback, `what` the server did; returns whether to act on it at once."""
        self._in_a_row += 1
        self.heard_at = now
        if self._in_a_row <= PROMPT_SETBACKS:
            return True
        self.setbacks += 1
        self._pause_s = min(max(HELLO_PERIOD_S, 2 * self._pause_s), RESEND_LIMIT_S)
        self.trouble = f"the {self.server} {what}, {self._in_a_row} times in a row"
        return False

    def greet_again(self, now: float) -> None:
        """Drop the session and start over with HELLO."""
        self.open, self._outstanding, self.busy = False, None, ""
        self._send_at = self._asked_at = now

    def give_up(self, now: float) -> None:
        """Turn to another server, which owes a sign of life and starts without the setbacks of this one.

        If this server owed an answer, the silence goes on counting over all servers tried after it.
        """
        if self.open and not self.waiting:
            self._asked_at = now
        self.open, self._outstanding, self.busy = False, None, ""
        self._in_a_row, self._pause_s, self.trouble = 0, 0.0, ""
        self._send_at = self._quiet_until = now

    def _header(self, kind: Kind, body: tuple[Any, ...]) -> Header:
        return Header(kind, self.sender, self.slot, self.epoch, self.seq, body)

    def _ignore(self) -> Reply:
        self.stale += 1
        return Reply.STALE

    def _lose(self, what: str, now: float) -> Reply:
        """Send HELLO again, after a pause if that has happened too often."""
        self.count_setback(what, now)
        self._quiet_until = now + self._pause_s
        self.greet_again(self._quiet_until)
        return Reply.LOST

    def _on_welcome(self, header: Header, now: float) -> Reply:
        if (self.open and header.epoch == self.epoch) or now < self._quiet_until:
            return Reply.STALE
        if header.seq > MAX_INTEGER // 2:
            raise RemoteProtocolError(f"WELCOME: seq is {header.seq}, which leaves no numbers for requests", "order")
        if self.open:
            self._lose("sends WELCOME with another epoch", now)
            if now < self._quiet_until:
                return Reply.LOST
        self.heard_at, self.stale, self.busy = now, 0, ""
        self.open, self.epoch, self.seq = True, header.epoch, header.seq
        self.terms = header.body[0]
        self._outstanding, self._opened_at = None, now
        return Reply.WELCOME

    def _on_bye(self, header: Header, now: float) -> Reply:
        if not self.open or header.epoch != self.epoch:
            return self._ignore()
        return self._lose("sends BYE", now)

    def _on_here(self, header: Header, now: float) -> Reply:
        """Take a HERE: the server works on what was asked, or has just got this client's subscription."""
        self.heard_at = now
        if header.seq or self._asked_at < 0:  # the latter: nothing has been asked of it, so it owes nothing
            return Reply.STALE
        if self.open and header.epoch != self.epoch:
            return self._lose("sends HERE with another epoch", now)
        if self.count_setback("sends HERE", now):
            self.busy = ""
            self.ask_again(now)
        return Reply.STALE

    def _on_error(self, header: Header, now: float) -> Reply:
        reason, sentence = header.body
        if not self._is_refused_by(header, reason):
            return self._ignore()
        if reason == Reason.UNKNOWN_SESSION:
            return self._lose("does not recognise the session that it has opened", now)
        if reason == Reason.BUSY:
            self._send_at, self.busy = now + BUSY_PERIOD_S, printable(sentence)
            return Reply.STALE
        self._outstanding = None  # after a refusal another request may follow
        failed = self.open and reason == Reason.ENVIRONMENT  # what it had accepted: no input is wrong
        by = "" if self._inside else f"{self.server}{'' if failed else ' refuses'}: "  # who, if it is not this process
        refused = RequestRefused(f"{by}{printable(sentence)}", reason)
        refused.exit_code = 1 if failed else refused.exit_code
        raise refused

    def _is_refused_by(self, header: Header, reason: str) -> bool:
        """Whether an ERROR answers the HELLO or the request that is under way."""
        unknown = reason == Reason.UNKNOWN_SESSION
        if not self.open:
            return header.seq == 0 and not unknown
        # A server without the session has another epoch; one that has it has the same, or gives none.
        return header.seq == self.seq and (unknown or header.epoch in (0, self.epoch))


_ABOUT_THE_SESSION: dict[Kind, Callable[[Stream, Header, float], Reply]] = {
    Kind.WELCOME: Stream._on_welcome,
    Kind.HERE: Stream._on_here,
    Kind.BYE: Stream._on_bye,
    Kind.ERROR: Stream._on_error,
}
