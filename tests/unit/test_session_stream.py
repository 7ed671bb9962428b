"""The client's half of a conversation, with plain numbers for time."""

from typing import Any

import pytest

from zerobeast.common.errors import Refused
from zerobeast.common.wire.messages import Frames, Header, Kind, Reason
from zerobeast.common.wire.stream import (
    BUSY_PERIOD_S,
    HELLO_PERIOD_S,
    RESEND_AFTER_S,
    RESEND_LIMIT_S,
    UNSENT_AFTER_S,
    Reply,
    Stream,
)

ME, SLOT, EPOCH = 7, 2, 99
FRAMES = (b"rows",)
HELLO = (Header(Kind.HELLO, ME, SLOT, body=({"num_envs": 3},)), ())


def stream() -> Stream:
    return Stream(ME, SLOT, {"num_envs": 3}, "env-server at tcp://x:1")


def said(kind: Kind, seq: int = 0, *body: Any, epoch: int = EPOCH) -> Header:
    return Header(kind, ME, SLOT, epoch, seq, body)


def welcome(epoch: int = EPOCH, seq: int = 0) -> Header:
    return said(Kind.WELCOME, seq, {"env": epoch}, epoch=epoch)


def error(reason: str, seq: int = 0) -> Header:
    return said(Kind.ERROR, seq, reason, "no", epoch=0)


def step(seq: int, epoch: int = EPOCH) -> tuple[Header, Frames]:
    return Header(Kind.STEP, ME, SLOT, epoch, seq), FRAMES


def opened() -> Stream:
    found = stream()
    assert found.accept(welcome(), 0.0) is Reply.WELCOME
    return found


def send(found: Stream, now: float) -> None:
    assert found.due(now) is not None
    found.sent(now)


def asked(now: float = 0.0) -> Stream:
    """A stream whose first STEP has been sent."""
    found = opened()
    found.request(Kind.STEP, (), FRAMES, now)
    send(found, now)
    return found


def test_hello_is_repeated_every_200_ms_until_welcome() -> None:
    found = stream()
    assert found.due(0.0) == HELLO
    assert found.due(0.1) is None
    assert found.deadline() == HELLO_PERIOD_S == 0.2
    assert found.due(0.2) == HELLO
    assert found.accept(welcome(), 0.3) is Reply.WELCOME
    assert (found.open, found.epoch, found.terms) == (True, EPOCH, {"env": EPOCH})
    assert found.due(10.0) is None
    assert found.deadline() == float("inf")


@pytest.mark.parametrize("begin", [stream, asked], ids=["before welcome", "before the answer to the last"])
def test_a_request_out_of_turn_is_a_mistake_of_the_caller(begin: Any) -> None:
    with pytest.raises(AssertionError):
        begin().request(Kind.STEP, (), FRAMES, 0.1)


def test_an_unanswered_request_is_repeated_less_and_less_often_until_an_answer_comes() -> None:
    found, now, waits = asked(5.0), 5.0, []
    assert found.due(5.0 + RESEND_AFTER_S - 0.01) is None
    for _ in range(5):
        waits.append(found.deadline() - now)
        now = found.deadline()
        assert found.due(now) == step(1)
        found.sent(now)
    assert waits == [RESEND_AFTER_S, 2 * RESEND_AFTER_S, *[RESEND_LIMIT_S] * 3]
    found.accept(said(Kind.OBS, 1, []), now)
    found.request(Kind.STEP, (), FRAMES, now)
    send(found, now)
    assert found.deadline() == now + RESEND_AFTER_S


def test_a_server_that_works_on_a_request_is_not_silent_and_one_that_sends_nothing_is() -> None:
    found = asked()
    assert found.silent_s(30.0) == 30.0
    send(found, RESEND_AFTER_S)
    assert found.silent_s(30.0) == 30.0, "that a request leaves is no sign of life: its connection may be dead"
    assert found.accept(said(Kind.HERE, 1), 25.0) is Reply.STALE
    assert found.silent_s(30.0) == 5.0
    assert found.deadline() == 3 * RESEND_AFTER_S, "nothing is to be repeated for that"


def test_a_server_that_is_working_on_a_hello_gets_it_no_faster() -> None:
    found = stream()
    assert found.due(0.0)
    assert found.accept(said(Kind.HERE, 1), 0.1) is Reply.STALE
    assert found.due(0.1) is None
    assert found.silent_s(1.0) == 0.9
    assert found.prepared(1.0, 1.0)
    assert not found.prepared(2.0, 1.0)


def test_a_request_is_repeated_at_once_over_a_new_connection() -> None:
    found = asked()
    assert found.accept(said(Kind.HERE), 0.5) is Reply.STALE
    assert found.due(0.5) == step(1)
    found.sent(0.5)
    found.ask_again(0.7)
    assert found.due(0.7) == step(1)


def test_a_request_that_did_not_leave_is_offered_again_soon_but_not_in_a_busy_loop() -> None:
    found = opened()
    found.request(Kind.STEP, (), FRAMES, 1.0)
    assert found.due(1.0) is not None
    assert found.due(1.0) is None
    assert found.deadline() == 1.0 + UNSENT_AFTER_S
    assert found.due(found.deadline()) is not None


def test_the_answer_ends_the_request_and_a_second_one_is_stale() -> None:
    found, answer = asked(), said(Kind.OBS, 1, [])
    assert found.expects(answer)
    assert found.accept(answer, 0.5) is Reply.ANSWER
    assert (found.waiting, found.heard_at) == (False, 0.5)
    assert not found.expects(answer)
    assert found.accept(answer, 0.6) is Reply.STALE


@pytest.mark.parametrize(
    "message",
    [
        said(Kind.OBS, 2, []),
        said(Kind.OBS, 0, []),
        said(Kind.OBS, 1, [], epoch=EPOCH + 1),
        said(Kind.ACT, 1, 5),
        said(Kind.STEP, 1),
        said(Kind.ACK, 1, 1, 1),
        said(Kind.BYE, 1, epoch=EPOCH - 1),
        welcome(),
        error(Reason.UNKNOWN_SESSION),
    ],
    ids=lambda header: f"{header.kind.name}-{header.seq}-{header.epoch}",
)
def test_anything_but_the_answer_is_stale(message: Header) -> None:
    found = asked()
    assert not found.expects(message)
    assert found.accept(message, 0.5) is Reply.STALE
    assert (found.open, found.waiting, found.seq) == (True, True, 1)


@pytest.mark.parametrize(
    "message",
    [error(Reason.UNKNOWN_SESSION, 1), said(Kind.BYE, 1), said(Kind.HERE, epoch=EPOCH + 1)],
    ids=["unknown session", "bye", "here of another start"],
)
def test_a_server_without_the_session_gets_hello_at_once(message: Header) -> None:
    found = asked()
    assert found.accept(message, 3.0) is Reply.LOST
    assert (found.open, found.waiting) == (False, False)
    assert found.due(3.0) == HELLO
    assert found.accept(said(Kind.BYE, 1), 3.0) is Reply.STALE


def test_a_stream_without_a_session_sends_hello_as_soon_as_a_server_is_here() -> None:
    found = stream()
    assert found.accept(said(Kind.HERE), 1.0) is Reply.STALE
    assert found.due(100.0) is not None
    assert found.silent_s(105.0) == 5.0, "it was not asked before"
    assert found.due(100.01) is None
    assert found.accept(said(Kind.HERE), 100.01) is Reply.STALE
    assert found.due(100.01) is not None


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


def test_a_busy_server_is_left_alone_for_a_second() -> None:
    found = stream()
    assert found.due(0.0) is not None
    assert found.accept(error(Reason.BUSY), 0.1) is Reply.STALE
    assert found.busy == "no"
    assert found.due(0.1 + BUSY_PERIOD_S - 0.01) is None
    assert found.due(0.1 + BUSY_PERIOD_S) == HELLO


def test_a_server_in_the_same_process_is_named_without_its_address() -> None:
    found = Stream(ME, SLOT, {}, "broker at inproc://broker")
    assert found.server == "broker"
    with pytest.raises(Refused, match=r"^no$"):  # a reason is enough: who runs a worker has started no broker
        found.accept(error(Reason.VERSION), 0.0)
