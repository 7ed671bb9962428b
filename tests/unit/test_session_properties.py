"""Sessions of a server, and a client over a network that loses and repeats messages, with a server that restarts."""

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from zerobeast.common.wire.messages import Header, Kind, Reason
from zerobeast.common.wire.session import UNUSED_S, Arrival, SessionTable
from zerobeast.common.wire.stream import Reply, Stream

Event = Literal["wait", "up", "down", "lose up", "lose down", "repeat up", "repeat down", "restart", "reap"]
EVENTS: list[Event] = ["wait", "up", "down", "lose up", "lose down", "repeat up", "repeat down", "restart", "reap"]
SMOOTH: list[Event] = ["wait", "up", "down"]


@dataclass
class Conversation:
    """One stream that always has a next request, and one server that records what it does."""

    stream: Stream = field(default_factory=lambda: Stream(7, 0, {}, "server"))
    table: SessionTable[list[int]] = field(default_factory=lambda: SessionTable(epoch=1))
    up: list[Header] = field(default_factory=list)
    down: list[Header] = field(default_factory=list)
    now: float = 0.0
    answered: int = 0

    def happen(self, event: Event) -> None:
        line = self.up if event.endswith("up") else self.down
        if event == "wait":
            self.wait()
        elif event == "restart":
            self.table = SessionTable(self.table.epoch + 1)
            self.up.clear()
        elif event == "reap":
            self.table.leave(7)
        elif line and event.startswith("repeat"):
            line.insert(0, line[0])
        elif line:
            header = line.pop(0)
            if event == "up":
                self.serve(header)
            elif event == "down":
                self.hear(header)

    def wait(self) -> None:
        self.now += 0.25
        if self.stream.open and not self.stream.waiting:
            self.stream.request(Kind.STEP, (), (), self.now)
        work = self.stream.due(self.now)
        if work:
            self.up.append(work[0])
            self.stream.sent(self.now)

    def serve(self, header: Header) -> None:
        session = self.table.of(header)
        if header.kind is Kind.HELLO:
            session = session or self.table.open(header, [], self.now)
            self.answer(header, Kind.WELCOME, session.seq, ({},))
        elif session is None:
            self.answer(header, Kind.ERROR, header.seq, (str(Reason.UNKNOWN_SESSION), "?"))
        elif (arrival := session.arrival(header.seq)) is Arrival.REPEATED:
            self.down.append(session.reply[0])
        elif arrival is Arrival.NEW:
            session.state.append(header.seq)
            session.reply = (self.answer(header, Kind.OBS, header.seq, ([len(session.state)],)), ())

    def answer(self, request: Header, kind: Kind, seq: int, body: tuple[object, ...]) -> Header:
        self.down.append(Header(kind, request.sender, request.slot, self.table.epoch, seq, body))
        return self.down[-1]

    def hear(self, header: Header) -> None:
        if self.stream.accept(header, self.now) is Reply.ANSWER:
            self.answered += 1
            assert header.seq == self.stream.seq


@settings(max_examples=200)
@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_no_request_is_done_twice_or_out_of_order_and_the_conversation_goes_on(events: list[Event]) -> None:
    talk = Conversation()
    for event in events:
        talk.happen(event)
        for session in talk.table:
            assert session.state == sorted(set(session.state))
    answered = talk.answered
    for _ in range(60):
        for event in SMOOTH:
            talk.happen(event)
    assert talk.answered > answered


@given(st.lists(st.sampled_from(["wait", "up", "down", "lose down", "repeat up", "repeat down"]), max_size=80))
def test_an_answer_counts_exactly_the_requests_made_so_far(events: list[Event]) -> None:
    talk = Conversation()
    for event in events:
        talk.happen(event)
    for session in talk.table:
        assert session.state == list(range(1, len(session.state) + 1)), "none skipped, none twice"
        assert talk.stream.seq - len(session.state) in (0, 1), "at most the newest is under way"


def test_a_session_that_asks_for_nothing_is_unused_after_a_while() -> None:
    table: SessionTable[None] = SessionTable(epoch=1)
    silent, busy = (table.open(Header(Kind.HELLO, 1, slot), None, now=100.0) for slot in (0, 1))
    busy.asked_at = 101.0
    assert table.unused(100.0 + UNUSED_S) == []
    assert table.unused(101.1 + UNUSED_S) == [silent]
    assert table.unused(101.2 + UNUSED_S) == [], "it looks once a second"
    assert table.unused(300.0, awake_since=290.0) == [], "a server that stood still has not heard it"
