"""The client's half of a conversation, with plain numbers for time: when it asks, and what it takes for an answer."""

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


def welcome(epoch: int = EPOCH) -> Header:
    return said(Kind.WELCOME, 0, {"env": epoch}, epoch=epoch)


def error(reason: str, seq: int = 0) -> Header:
    return said(Kind.ERROR, seq, reason, "no", epoch=0)


def step(seq: int) -> tuple[Header, Frames]:
    return Header(Kind.STEP, ME, SLOT, EPOCH, seq), FRAMES


def send(found: Stream, now: float) -> None:
    assert found.due(now) is not None
    found.sent(now)


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
    assert found.deadline() == HELLO_PERIOD_S == 0.2
    assert found.due(0.2) == HELLO
    assert found.accept(error(Reason.BUSY), 0.3) is Reply.STALE
    assert found.busy == "no"
    assert [found.due(0.3 + BUSY_PERIOD_S - more) for more in (0.01, 0.0)] == [None, HELLO]
    assert found.accept(welcome(), 2.0) is Reply.WELCOME
    assert (found.open, found.epoch, found.terms) == (True, EPOCH, {"env": EPOCH})
    assert found.due(10.0) is None
    assert found.deadline() == float("inf")


def test_an_unanswered_request_is_repeated_less_and_less_often_or_at_once_over_a_new_connection() -> None:
    found, now, waits = asked(5.0), 5.0, []
    assert found.due(5.0 + RESEND_AFTER_S - 0.01) is None
    for _ in range(5):
        waits.append(found.deadline() - now)
        now = found.deadline()
        assert found.due(now) == step(1)
        found.sent(now)
    assert waits == [RESEND_AFTER_S, 2 * RESEND_AFTER_S, *[RESEND_LIMIT_S] * 3]
    assert found.accept(said(Kind.HERE), now) is Reply.STALE
    assert found.due(now) == step(1)
    found.sent(now)
    found.ask_again(now + 0.2)
    assert found.due(now + 0.2) == step(1)
    found.accept(said(Kind.OBS, 1, []), now)
    found.request(Kind.STEP, (), FRAMES, now)
    send(found, now)
    assert found.deadline() == now + RESEND_AFTER_S


def test_a_request_that_did_not_leave_is_offered_again_soon_but_not_in_a_busy_loop() -> None:
    found = opened()
    found.request(Kind.STEP, (), FRAMES, 1.0)
    assert [found.due(1.0), found.due(1.0)] == [step(1), None]
    assert found.deadline() == 1.0 + UNSENT_AFTER_S
    assert found.due(found.deadline()) is not None


def test_a_server_that_works_on_what_it_was_asked_is_not_silent_and_is_asked_no_faster() -> None:
    found = asked()
    send(found, RESEND_AFTER_S)
    assert found.silent_s(30.0) == 30.0, "that a request leaves is no sign of life: its connection may be dead"
    assert found.accept(said(Kind.HERE, 1), 25.0) is Reply.STALE
    assert found.silent_s(30.0) == 5.0
    assert found.deadline() == 3 * RESEND_AFTER_S
    found = stream()
    assert found.due(0.0)
    assert found.accept(said(Kind.HERE, 1), 0.1) is Reply.STALE
    assert found.due(0.1) is None
    assert found.silent_s(1.0) == 0.9
    assert [found.prepared(now, 1.0) for now in (1.0, 2.0)] == [True, False]


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


def test_a_stream_without_a_session_sends_hello_as_soon_as_a_server_is_here() -> None:
    found = stream()
    assert found.accept(said(Kind.HERE), 1.0) is Reply.STALE
    assert found.due(100.0) is not None
    assert found.silent_s(105.0) == 5.0, "it was not asked before"
    assert found.due(100.01) is None
    assert found.accept(said(Kind.HERE), 100.01) is Reply.STALE
    assert found.due(100.01) is not None


@pytest.mark.parametrize(
    "message",
    [
        said(Kind.OBS, 2, []),
        said(Kind.OBS, 0, []),
        said(Kind.OBS, 1, [], epoch=EPOCH + 1),
        said(Kind.ACT, 1, 5),
        said(Kind.BYE, 1, epoch=EPOCH - 1),
        welcome(),
        error(Reason.UNKNOWN_SESSION),
    ],
    ids=lambda header: f"{header.kind.name}-{header.seq}-{header.epoch}",
)
def test_the_answer_ends_a_request_and_anything_else_is_stale(message: Header) -> None:
    found, answer = asked(), said(Kind.OBS, 1, [])
    assert not found.expects(message)
    assert found.accept(message, 0.5) is Reply.STALE
    assert (found.open, found.waiting, found.seq, found.expects(answer)) == (True, True, 1, True)
    assert found.accept(answer, 0.6) is Reply.ANSWER
    assert (found.waiting, found.heard_at, found.expects(answer)) == (False, 0.6, False)
    assert found.accept(answer, 0.7) is Reply.STALE


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


def test_a_server_in_the_same_process_is_named_without_its_address() -> None:
    found = Stream(ME, SLOT, {}, "broker at inproc://broker")
    assert found.server == "broker"
    with pytest.raises(Refused) as caught:
        found.accept(error(Reason.VERSION), 0.0)
    assert str(caught.value) == "no", "who runs a worker has started no broker"
