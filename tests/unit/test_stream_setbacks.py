"""A server that sends something other than the answer: what ends a client, and what it ignores or waits out."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.build.errors import refused
from zerobeast.common.errors import Refused, RemoteProtocolError
from zerobeast.common.wire.messages import MAX_INTEGER, Header, Kind, Reason
from zerobeast.common.wire.stream import LASTING_S, PROMPT_SETBACKS, RESEND_LIMIT_S, Reply, Stream

ME, SLOT, EPOCH = 7, 2, 99
ROUND_TRIP_S = 0.0005


def said(kind: Kind, epoch: int = EPOCH, seq: int = 0, *body: Any) -> Header:
    return Header(kind, ME, SLOT, epoch, seq, body)


def asked(now: float = 0.0) -> Stream:
    """A stream whose second STEP, seq 12, has been sent."""
    found = Stream(ME, SLOT, {}, "env-server at tcp://x:1")
    found.accept(said(Kind.WELCOME, EPOCH, 10, {}), now)
    for seq in (11, 12):
        found.request(Kind.STEP, (), (), now)
        assert found.due(now)
        found.sent(now)
        if seq == 11:
            assert found.accept(said(Kind.OBS, EPOCH, seq, []), now) is Reply.ANSWER
    return found


@pytest.mark.parametrize(("epoch", "seq"), [(EPOCH, 11), (EPOCH, 13), (EPOCH + 1, 12)])
def test_a_refusal_of_something_else_than_the_newest_request_is_ignored(epoch: int, seq: int) -> None:
    found = asked()
    assert found.accept(said(Kind.ERROR, epoch, seq, "terms", "no"), 0.1) is Reply.STALE
    assert (found.open, found.waiting, found.stale) == (True, True, 1)


@pytest.mark.parametrize("reason", [Reason.TERMS, Reason.ENVIRONMENT, "a reason of the future"])
@pytest.mark.parametrize("epoch", [0, EPOCH])
def test_a_refusal_of_the_newest_request_is_final_and_shown_without_control_characters(epoch: int, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        asked().accept(said(Kind.ERROR, epoch, 12, str(reason), "\x1b[2Jno\r\n12:00:00 I all is well"), 0.1)
    exit_code = 1 if reason == Reason.ENVIRONMENT else 2  # a setting is wrong, unless the environment is broken
    assert (caught.value.reason, caught.value.exit_code) == (reason, exit_code)
    assert str(caught.value).isprintable()


def test_a_refusal_of_an_old_request_does_not_answer_hello() -> None:
    found = asked()
    found.greet_again(0.1)
    for header in (said(Kind.ERROR, EPOCH, 12, "terms", "no"), said(Kind.ERROR, 0, 12, "busy", "no")):
        assert found.accept(header, 0.1) is Reply.STALE
    assert not found.busy
    found.accept(said(Kind.ERROR, 0, 0, "busy", "\x1b]0;mine\x07"), 0.1)
    assert found.busy.isprintable()
    with pytest.raises(Refused):
        found.accept(said(Kind.ERROR, 5, 0, "terms", "no"), 0.1)


def test_a_welcome_that_leaves_no_sequence_numbers_is_refused() -> None:
    found = Stream(ME, SLOT, {}, "x")
    with refused(kind=RemoteProtocolError, reason="order"):
        found.accept(said(Kind.WELCOME, EPOCH, MAX_INTEGER, {}), 0.0)
    assert not found.open


class Liar:
    """A server that welcomes clients, but answers every request with something else."""

    def __init__(self, instead: Callable[["Liar", Header], Header], *, welcomes: bool = True) -> None:
        self.instead, self.welcomes = instead, welcomes
        self.epoch, self.honest = EPOCH, False

    def reply(self, header: Header) -> Header | None:
        if header.kind is Kind.BYE:
            return None
        if header.kind is Kind.HELLO and (self.honest or self.welcomes):
            return said(Kind.WELCOME, self.epoch, 0, {})
        return said(Kind.OBS, self.epoch, header.seq, []) if self.honest else self.instead(self, header)

    def of_another_start(self, kind: Kind, *body: Any) -> Header:
        self.epoch += 1
        return said(kind, self.epoch, 0, *body)


INSTEAD: dict[str, tuple[str, Liar]] = {
    "bye": ("sends BYE", Liar(lambda me, _: said(Kind.BYE, me.epoch))),
    "here": ("sends HERE", Liar(lambda me, _: said(Kind.HERE, me.epoch))),
    "here to hello": ("sends HERE", Liar(lambda me, _: said(Kind.HERE, me.epoch), welcomes=False)),
    "here of another start": ("sends HERE with another epoch", Liar(lambda me, _: me.of_another_start(Kind.HERE))),
    "welcome": ("sends WELCOME with another epoch", Liar(lambda me, _: me.of_another_start(Kind.WELCOME, {}))),
    "unknown": (
        "does not recognise the session",
        Liar(lambda me, asked: said(Kind.ERROR, me.epoch, asked.seq, str(Reason.UNKNOWN_SESSION), "?")),
    ),
}


def converse(stream: Stream, server: Liar, now: float, until: float) -> list[float]:
    """Run a client that always has a next request; return the times at which it sent something."""
    sent = []
    while now < until:
        if stream.open and not stream.waiting:
            stream.request(Kind.STEP, (), (), now)
        if work := stream.due(now):
            sent.append(now)
            stream.sent(now)
            now += ROUND_TRIP_S
            if reply := server.reply(work[0]):
                stream.accept(reply, now)
        if stream.waiting or not stream.open:
            now = max(now, min(stream.deadline(), until))
    return sent


@pytest.mark.parametrize("case", INSTEAD)
def test_a_server_that_never_answers_is_asked_less_and_less_often_and_as_before_once_it_does(case: str) -> None:
    what, server = INSTEAD[case]
    stream = Stream(ME, SLOT, {}, "env-server at tcp://x:1")
    sent = converse(stream, server, 0.0, 60.0)
    rare = 5 if case == "here to hello" else 1  # a HELLO is repeated every 200 ms even if no server is there
    assert len(sent) < 60 * rare + 2 * PROMPT_SETBACKS
    assert stream.setbacks > 3
    assert what in stream.trouble
    server.honest = True
    sent = converse(stream, server, 60.0, 60.0 + RESEND_LIMIT_S + LASTING_S + 1)
    server.honest = False
    assert len(sent) > 1000
    assert not stream.trouble


@pytest.mark.parametrize("case", ["bye", "here", "here of another start", "welcome", "unknown"])
def test_a_restart_costs_no_wait_even_twice_in_a_row(case: str) -> None:
    _, server = INSTEAD[case]
    stream = Stream(ME, SLOT, {}, "x")
    server.honest = True
    now = 0.0
    for _ in range(2):
        converse(stream, server, now, now + 2 * LASTING_S)
        now += 2 * LASTING_S
        for _ in range(2):
            stream.accept(server.instead(server, Header(Kind.STEP, ME, SLOT, EPOCH, stream.seq)), now)
            assert stream.open or stream.deadline() <= now
    server.honest = False
    assert stream.setbacks == 0
    assert not stream.trouble


def test_a_session_whose_answer_is_useless_is_ended_and_not_held_against_the_next_server() -> None:
    stream = asked()
    for _ in range(PROMPT_SETBACKS + 3):
        stream.reject("nonsense", 1.0)
    assert stream.trouble
    stream.give_up(2.0)
    assert not stream.trouble
    farewell, hello = stream.due(2.0), stream.due(2.0)
    assert (farewell[0].kind, farewell[0].epoch, farewell[0].slot) == (Kind.BYE, EPOCH, SLOT)
    assert hello[0].kind is Kind.HELLO, "at once"
    assert stream.accept(said(Kind.WELCOME, EPOCH + 1, 0, {}), 2.1) is Reply.WELCOME


def test_silence_carries_over_to_the_next_server_only_if_an_answer_was_owed() -> None:
    stream = asked()
    stream.give_up(50.0)
    assert stream.silent_s(60.0) == 60.0
    stream = asked()
    assert stream.accept(said(Kind.OBS, EPOCH, 12, []), 0.1) is Reply.ANSWER
    assert stream.silent_s(50.0) == 0.0
    stream.give_up(50.0)
    assert stream.silent_s(60.0) == 10.0
