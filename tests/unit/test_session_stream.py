"""The client's half of a conversation and sessions of a server, with plain numbers for time, over any network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.errors import refuses
from zerobeast.common.errors import RemoteProtocolError, RequestRefused
from zerobeast.common.wire import stream as client
from zerobeast.common.wire.messages import MAX_INTEGER, Frames, Header, Kind, Reason
from zerobeast.common.wire.session import UNUSED_S, Arrival, SessionTable
from zerobeast.common.wire.stream import RESEND_AFTER_S, RESEND_LIMIT_S, Reply, Stream

ME, SLOT, EPOCH = 7, 2, 99
FRAMES = (b"rows",)
HELLO = (Header(Kind.HELLO, ME, SLOT, body=({"num_envs": 3},)), ())


def stream() -> Stream:
    return Stream(ME, SLOT, {"num_envs": 3}, "env-server at tcp://x:1")


def said(kind: Kind, seq: int = 0, *body: Any, epoch: int = EPOCH) -> Header:
    return Header(kind, ME, SLOT, epoch, seq, body)


def welcome(epoch: int = EPOCH) -> Header:
    return said(Kind.WELCOME, 0, {"env": epoch}, epoch=epoch)


def error(reason: str, seq: int = 0) -> Header:
    return said(Kind.ERROR, seq, reason, "no", epoch=0)


def step(seq: int) -> tuple[Header, Frames]:
    return Header(Kind.STEP, ME, SLOT, EPOCH, seq), FRAMES


def send(found: Stream, now: float) -> None:
    assert found.due(now) is not None
    found.note_sent(now)


def opened() -> Stream:
    found = stream()
    assert found.accept(welcome(), 0.0) is Reply.WELCOME
    return found


def asked(now: float = 0.0) -> Stream:
    """A stream whose first STEP has been sent."""
    found = opened()
    found.request(Kind.STEP, (), FRAMES, now)
    send(found, now)
    return found


def test_hello_is_repeated_every_200_ms_until_welcome_and_every_second_if_there_is_no_room() -> None:
    found = stream()
    assert [found.due(now) for now in (0.0, 0.1)] == [HELLO, None]
    assert found.deadline() == client.HELLO_PERIOD_S == 0.2
    assert found.due(0.2) == HELLO
    assert found.accept(error(Reason.BUSY), 0.3) is Reply.STALE
    assert found.busy == "no"
    assert [found.due(0.3 + client.BUSY_PERIOD_S - more) for more in (0.01, 0.0)] == [None, HELLO]
    assert found.accept(welcome(), 2.0) is Reply.WELCOME
    assert (found.open, found.epoch, found.terms) == (True, EPOCH, {"env": EPOCH})
    assert found.due(10.0) is None
    assert found.deadline() == float("inf")
    found.request(Kind.STEP, (), FRAMES, 10.0)
    assert [found.due(10.0), found.due(10.0), found.due(10.0 + client.UNSENT_AFTER_S)] == [step(1), None, step(1)]


def test_an_unanswered_request_is_repeated_less_and_less_often_or_at_once_over_a_new_connection() -> None:
    found, now, waits = asked(5.0), 5.0, []
    assert found.due(5.0 + RESEND_AFTER_S - 0.01) is None
    for _ in range(5):
        waits.append(found.deadline() - now)
        now = found.deadline()
        assert found.due(now) == step(1)
        found.note_sent(now)
    assert waits == [RESEND_AFTER_S, 2 * RESEND_AFTER_S, *[RESEND_LIMIT_S] * 3]
    assert found.accept(said(Kind.HERE), now) is Reply.STALE
    assert found.due(now) == step(1)
    found.note_sent(now)
    found.ask_again(now + 0.2)
    assert found.due(now + 0.2) == step(1)
    answers = [found.accept(said(Kind.OBS, 1, []), now) for _ in range(2)]
    found.request(Kind.STEP, (), FRAMES, now)
    assert [*answers, found.accept(said(Kind.OBS, 1, []), now)] == [Reply.ANSWER, Reply.STALE, Reply.STALE]
    send(found, now)
    assert found.deadline() == now + RESEND_AFTER_S


def test_a_server_that_works_on_what_it_was_asked_is_not_silent_and_is_asked_no_faster() -> None:
    found = asked()
    send(found, RESEND_AFTER_S)
    assert found.silent_s(30.0) == 30.0, "that a request leaves is no sign of life: its connection may be dead"
    assert found.accept(said(Kind.HERE, 1), 25.0) is Reply.STALE
    assert found.silent_s(30.0) == 5.0
    assert found.deadline() == 3 * RESEND_AFTER_S
    found = stream()
    assert found.accept(said(Kind.HERE), 1.0) is Reply.STALE
    assert found.due(100.0)
    assert found.silent_s(105.0) == 5.0, "it was not asked before"
    assert found.accept(said(Kind.HERE), 105.0) is Reply.STALE
    assert found.due(105.0), "a server is here"
    assert found.accept(said(Kind.HERE, 1), 105.0625) is Reply.STALE
    assert found.due(105.0625) is None
    assert found.silent_s(106.0) == 0.9375
    assert [found.is_preparing(now, 1.0) for now in (106.0, 107.0)] == [True, False]


def test_a_server_owes_a_sign_of_life_only_while_it_is_asked() -> None:
    found = stream()
    assert found.due(5.0) is not None
    assert found.silent_s(8.0) == 3.0
    found.accept(welcome(), 8.0)
    assert found.silent_s(100.0) == 0.0, "nothing is asked"
    found.request(Kind.STEP, (), FRAMES, 100.0)
    assert found.silent_s(107.0) == 7.0, "what does not leave is not answered either"
    found.accept(error(Reason.UNKNOWN_SESSION, seq=1), 200.0)
    assert found.silent_s(203.0) == 3.0, "a server that has forgotten the stream was heard all the same"
    found.accept(welcome(epoch=100), 204.0)
    found.greet_again(500.0)
    assert found.silent_s(501.0) == 1.0, "the time before it was asked does not count"


ROUND_TRIP_S = 0.0005


def test_a_refusal_of_the_newest_request_is_final_and_an_older_one_does_not_answer_hello() -> None:
    with pytest.raises(RequestRefused) as caught:
        asked().accept(said(Kind.ERROR, 1, "a reason of the future", "no"), 0.1)
    assert (caught.value.reason, caught.value.exit_code) == ("a reason of the future", 2)
    found = asked()
    found.greet_again(0.1)
    for header in (said(Kind.ERROR, 1, "terms", "no"), said(Kind.ERROR, 1, "busy", "no", epoch=0)):
        assert found.accept(header, 0.1) is Reply.STALE
    assert not found.busy
    found.accept(said(Kind.ERROR, 0, "busy", "\x1b]0;mine\x07", epoch=0), 0.1)
    assert found.busy.isprintable()
    with pytest.raises(RequestRefused):
        found.accept(said(Kind.ERROR, 0, "terms", "no", epoch=5), 0.1)


def test_a_welcome_that_leaves_no_sequence_numbers_is_refused() -> None:
    found = Stream(ME, SLOT, {}, "x")
    with refuses(kind=RemoteProtocolError, reason="order"):
        found.accept(said(Kind.WELCOME, MAX_INTEGER, {}), 0.0)
    assert not found.open


@dataclass
class Liar:
    """A server that answers every request, and HELLO if it does not welcome, with something else."""

    kind: Kind
    body: tuple[Any, ...] = ()
    restarts: bool = False  #: each of those comes from another start
    welcomes: bool = True
    honest: bool = False
    epoch: int = EPOCH

    def reply(self, asked: Header) -> Header:
        if asked.kind is Kind.HELLO and (self.honest or self.welcomes):
            return said(Kind.WELCOME, 0, {}, epoch=self.epoch)
        return said(Kind.OBS, asked.seq, [], epoch=self.epoch) if self.honest else self.lie(asked.seq)

    def lie(self, seq: int) -> Header:
        self.epoch += self.restarts
        return said(self.kind, seq if self.kind is Kind.ERROR else 0, *self.body, epoch=self.epoch)


LIARS: dict[str, Callable[[], Liar]] = {
    "bye": lambda: Liar(Kind.BYE),
    "here": lambda: Liar(Kind.HERE),
    "here to hello": lambda: Liar(Kind.HERE, welcomes=False),
    "here of another start": lambda: Liar(Kind.HERE, restarts=True),
    "welcome": lambda: Liar(Kind.WELCOME, ({},), restarts=True),
    "unknown": lambda: Liar(Kind.ERROR, (str(Reason.UNKNOWN_SESSION), "?")),
}


def converse(stream: Stream, server: Liar, now: float, until: float) -> int:
    """Run a client that always has a next request; return how often it sent something."""
    sent = 0
    while now < until:
        if stream.open and not stream.waiting:
            stream.request(Kind.STEP, (), (), now)
        if work := stream.due(now):
            sent += 1
            stream.note_sent(now)
            now += ROUND_TRIP_S
            if work[0].kind is not Kind.BYE:
                stream.accept(server.reply(work[0]), now)
        if stream.waiting or not stream.open:
            now = max(now, min(stream.deadline(), until))
    return sent


@pytest.mark.parametrize("case", LIARS)
def test_a_server_that_never_answers_is_asked_less_and_less_often_and_as_before_once_it_does(case: str) -> None:
    server, stream = LIARS[case](), Stream(ME, SLOT, {}, "x")
    rare = 5 if case == "here to hello" else 1  # a HELLO is repeated every 200 ms even if no server is there
    assert converse(stream, server, 0.0, 60.0) < 60 * rare + 2 * client.PROMPT_SETBACKS
    assert stream.setbacks > 3
    assert stream.trouble
    server.honest = True
    assert converse(stream, server, 60.0, 60.0 + RESEND_LIMIT_S + client.LASTING_S + 1) > 1000
    assert not stream.trouble


@pytest.mark.parametrize("case", sorted(LIARS.keys() - {"here to hello"}))
def test_a_restart_costs_no_wait_even_twice_in_a_row(case: str) -> None:
    server, stream, now = LIARS[case](), Stream(ME, SLOT, {}, "x"), 0.0
    server.honest = True
    for _ in range(2):
        converse(stream, server, now, now + 2 * client.LASTING_S)
        now += 2 * client.LASTING_S
        for _ in range(2):
            stream.accept(server.lie(stream.seq), now)
            assert stream.open or stream.deadline() <= now
    assert stream.setbacks == 0
    assert not stream.trouble


def test_a_session_whose_answer_is_useless_is_ended_and_not_held_against_the_next_server() -> None:
    stream = asked()
    for _ in range(client.PROMPT_SETBACKS + 3):
        stream.reject("nonsense", 1.0)
    assert stream.trouble
    stream.give_up(2.0)
    assert not stream.trouble
    farewell, hello = stream.due(2.0), stream.due(2.0)
    assert (farewell[0].kind, farewell[0].epoch, farewell[0].slot) == (Kind.BYE, EPOCH, SLOT)
    assert hello[0].kind is Kind.HELLO, "at once"
    assert stream.accept(said(Kind.WELCOME, 0, {}, epoch=EPOCH + 1), 2.1) is Reply.WELCOME


def test_silence_carries_over_to_the_next_server_only_if_an_answer_was_owed() -> None:
    stream = asked()
    stream.give_up(50.0)
    assert stream.silent_s(60.0) == 60.0
    stream = asked()
    assert stream.accept(said(Kind.OBS, 1, []), 0.1) is Reply.ANSWER
    assert stream.silent_s(50.0) == 0.0
    stream.give_up(50.0)
    assert stream.silent_s(60.0) == 10.0


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
            self.stream.note_sent(self.now)

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
    assert table.find_unused(100.0 + UNUSED_S) == []
    assert table.find_unused(101.1 + UNUSED_S) == [silent]
    assert table.find_unused(101.2 + UNUSED_S) == [], "it looks once a second"
    assert table.find_unused(300.0, awake_since=290.0) == [], "a server that stood still has not heard it"
