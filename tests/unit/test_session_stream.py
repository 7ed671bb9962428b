"""The client's half of a conversation, with plain numbers for time."""

from typing import Any

import pytest

from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.messages import Header, Kind, Reason
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


def stream() -> Stream:
    return Stream(ME, SLOT, {"num_envs": 3}, "env-server at tcp://x:1")


def from_server(kind: Kind, seq: int = 0, body: tuple[Any, ...] = (), epoch: int = EPOCH) -> Header:
    return Header(kind, ME, SLOT, epoch, seq, body)


def welcome(epoch: int = EPOCH, seq: int = 0) -> Header:
    return from_server(Kind.WELCOME, seq, ({"env": epoch},), epoch)


def error(reason: str, seq: int = 0) -> Header:
    return from_server(Kind.ERROR, seq, (reason, "no"), 0)


def opened(now: float = 0.0) -> Stream:
    found = stream()
    assert found.accept(welcome(), now) is Reply.WELCOME
    return found


def asked(now: float = 0.0) -> Stream:
    """A stream whose first STEP has been sent."""
    found = opened(now)
    found.request(Kind.STEP, (), FRAMES, now)
    assert found.due(now) is not None
    found.sent(now)
    return found


def test_hello_is_repeated_every_200_ms_until_welcome() -> None:
    found = stream()
    hello = Header(Kind.HELLO, ME, SLOT, body=({"num_envs": 3},))
    assert found.due(0.0) == (hello, ())
    assert found.due(0.1) is None
    assert found.deadline() == HELLO_PERIOD_S == 0.2
    assert found.due(0.2) == (hello, ())
    assert found.accept(welcome(), 0.3) is Reply.WELCOME
    assert (found.open, found.epoch, found.terms) == (True, EPOCH, {"env": EPOCH})
    assert found.due(10.0) is None
    assert found.deadline() == float("inf")


def test_no_request_goes_before_welcome() -> None:
    with pytest.raises(AssertionError, match="WELCOME"):
        stream().request(Kind.STEP, (), (), 0.0)


def test_a_request_carries_the_servers_epoch_and_the_next_number() -> None:
    found = stream()
    found.accept(welcome(seq=41), 0.0)
    found.request(Kind.STEP, (), FRAMES, 1.0)
    assert found.due(1.0) == (Header(Kind.STEP, ME, SLOT, EPOCH, 42), FRAMES)


def test_only_one_request_is_outstanding() -> None:
    with pytest.raises(AssertionError, match="one request"):
        asked().request(Kind.STEP, (), FRAMES, 0.1)


def test_an_unanswered_request_is_repeated_under_its_number() -> None:
    found = asked(now=5.0)
    assert found.due(5.0 + RESEND_AFTER_S - 0.01) is None
    assert found.deadline() == 5.0 + RESEND_AFTER_S
    repeated = found.due(5.0 + RESEND_AFTER_S)
    assert repeated == (Header(Kind.STEP, ME, SLOT, EPOCH, 1), FRAMES)


def test_repetitions_become_rare_until_an_answer_comes() -> None:
    found, now, waits = asked(now=0.0), 0.0, []
    for _ in range(5):
        waits.append(found.deadline() - now)
        now = found.deadline()
        assert found.due(now)
        found.sent(now)
    assert waits == [RESEND_AFTER_S, 2 * RESEND_AFTER_S, *[RESEND_LIMIT_S] * 3]
    found.accept(from_server(Kind.OBS, 1, ([],)), now)
    found.request(Kind.STEP, (), FRAMES, now)
    assert found.due(now)
    found.sent(now)
    assert found.deadline() == now + RESEND_AFTER_S


def test_a_server_that_works_on_a_request_is_not_silent_and_one_that_sends_nothing_is() -> None:
    found = asked(now=0.0)
    assert found.silent_s(30.0) == 30.0
    assert found.due(RESEND_AFTER_S)
    found.sent(RESEND_AFTER_S)
    assert found.silent_s(30.0) == 30.0, "that a request leaves is no sign of life: its connection may be dead"
    assert found.accept(from_server(Kind.HERE, seq=1), 25.0) is Reply.STALE
    assert found.silent_s(30.0) == 5.0
    assert found.deadline() == 3 * RESEND_AFTER_S, "nothing is to be repeated for that"


def test_a_server_that_is_working_on_a_hello_gets_it_no_faster() -> None:
    found = stream()
    assert found.due(0.0)
    assert found.accept(from_server(Kind.HERE, seq=1), 0.1) is Reply.STALE
    assert found.due(0.1) is None
    assert found.silent_s(1.0) == 0.9


def test_a_request_is_repeated_at_once_over_a_new_connection() -> None:
    found = asked(now=0.0)
    assert found.accept(from_server(Kind.HERE), 0.5) is Reply.STALE
    assert (found.open, found.waiting) == (True, True)
    assert found.due(0.5) == (Header(Kind.STEP, ME, SLOT, EPOCH, 1), FRAMES)
    found.sent(0.5)
    found.ask_again(0.7)
    assert found.due(0.7) is not None


def test_a_request_that_did_not_leave_is_offered_again_soon_but_not_in_a_busy_loop() -> None:
    found = opened()
    found.request(Kind.STEP, (), FRAMES, 1.0)
    assert found.due(1.0) is not None
    assert found.due(1.0) is None
    assert found.deadline() == 1.0 + UNSENT_AFTER_S
    assert found.due(found.deadline()) is not None


def test_the_answer_ends_the_request_and_a_second_one_is_stale() -> None:
    found = asked()
    answer = from_server(Kind.OBS, 1, ([],))
    assert found.expects(answer)
    assert found.accept(answer, 0.5) is Reply.ANSWER
    assert not found.waiting
    assert found.heard_at == 0.5
    assert not found.expects(answer)
    assert found.accept(answer, 0.6) is Reply.STALE


@pytest.mark.parametrize(
    "answer",
    [
        from_server(Kind.OBS, 2, ([],)),
        from_server(Kind.OBS, 0, ([],)),
        from_server(Kind.OBS, 1, ([],), epoch=EPOCH + 1),
        from_server(Kind.ACT, 1, (5,)),
        from_server(Kind.STEP, 1),
        from_server(Kind.ACK, 1, (1, 1)),
    ],
    ids=lambda header: f"{header.kind.name}-{header.seq}-{header.epoch}",
)
def test_anything_but_the_answer_is_stale(answer: Header) -> None:
    found = asked()
    assert not found.expects(answer)
    assert found.accept(answer, 0.5) is Reply.STALE
    assert found.waiting


def test_a_repeated_welcome_changes_nothing() -> None:
    found = asked()
    assert found.accept(welcome(), 0.1) is Reply.STALE
    assert found.waiting
    assert found.seq == 1


def test_the_welcome_of_a_restarted_server_drops_the_request_and_starts_its_count() -> None:
    found = asked()
    assert found.accept(welcome(epoch=100, seq=6), 0.1) is Reply.WELCOME
    assert not found.waiting
    found.request(Kind.RESET, (), (), 0.2)
    assert found.due(0.2) == (Header(Kind.RESET, ME, SLOT, 100, 7), ())


def test_a_server_that_does_not_have_the_stream_gets_hello_again() -> None:
    found = asked()
    assert found.accept(error(Reason.UNKNOWN_SESSION, seq=1), 3.0) is Reply.LOST
    assert not found.open
    assert not found.waiting
    assert found.due(3.0)[0].kind is Kind.HELLO


def test_a_late_unknown_session_of_an_earlier_request_is_stale() -> None:
    found = asked()
    assert found.accept(error(Reason.UNKNOWN_SESSION, seq=0), 3.0) is Reply.STALE
    assert found.open


def test_a_server_that_sends_bye_gets_hello_again() -> None:
    found = asked()
    assert found.accept(from_server(Kind.BYE, epoch=EPOCH - 1), 1.0) is Reply.STALE
    assert found.accept(from_server(Kind.BYE, seq=1), 1.0) is Reply.LOST
    assert not found.open
    assert found.accept(from_server(Kind.BYE, seq=1), 1.0) is Reply.STALE


def test_a_restarted_server_that_sends_here_gets_hello_at_once() -> None:
    found = asked()
    assert found.accept(from_server(Kind.HERE, epoch=EPOCH + 1), 0.5) is Reply.LOST
    assert found.due(0.5)[0].kind is Kind.HELLO
    assert not found.waiting


def test_a_stream_without_a_session_sends_hello_as_soon_as_a_server_is_here() -> None:
    found = stream()
    assert found.due(0.0) is not None
    assert found.due(0.01) is None
    assert found.accept(from_server(Kind.HERE), 0.01) is Reply.STALE
    assert found.due(0.01) is not None


def test_a_server_that_is_here_before_it_is_asked_owes_nothing_until_then() -> None:
    found = stream()
    assert found.accept(from_server(Kind.HERE), 1.0) is Reply.STALE
    assert found.due(100.0) is not None
    assert found.silent_s(105.0) == 5.0


def test_a_server_owes_a_sign_of_life_only_while_it_is_asked() -> None:
    found = stream()
    assert found.due(5.0) is not None
    assert found.silent_s(8.0) == 3.0
    found.accept(welcome(), 8.0)
    assert found.silent_s(100.0) == 0.0, "nothing is asked"
    found.request(Kind.STEP, (), FRAMES, 100.0)
    assert found.silent_s(107.0) == 7.0, "what does not leave is not answered either"
    found.sent(107.0)
    assert found.silent_s(108.0) == 8.0, "the connection may be dead"
    found.accept(from_server(Kind.HERE, seq=1), 109.0)
    assert found.silent_s(110.0) == 1.0, "environments may be slow"
    found.accept(error(Reason.UNKNOWN_SESSION, seq=1), 200.0)
    assert found.silent_s(203.0) == 3.0, "a server that has forgotten the stream was heard all the same"
    found.accept(welcome(epoch=100), 204.0)
    found.greet_again(500.0)
    assert found.silent_s(501.0) == 1.0, "the time before it was asked does not count"


def test_a_busy_server_is_left_alone_for_a_second() -> None:
    found = stream()
    assert found.due(0.0) is not None
    assert found.accept(error(Reason.BUSY), 0.1) is Reply.STALE
    assert found.due(0.1 + BUSY_PERIOD_S - 0.01) is None
    assert found.due(0.1 + BUSY_PERIOD_S)[0].kind is Kind.HELLO


@pytest.mark.parametrize("reason", [Reason.VERSION, Reason.TERMS, Reason.ENVIRONMENT, "a reason of the future"])
def test_any_other_refusal_is_final_and_names_the_server(reason: str) -> None:
    with pytest.raises(ConfigError, match=r"env-server at tcp://x:1 refuses: no"):
        stream().accept(error(reason), 0.0)


def test_a_server_in_the_same_process_is_named_without_its_address() -> None:
    found = Stream(ME, SLOT, {}, "broker at inproc://broker")
    assert found.server == "broker"
    with pytest.raises(ConfigError, match=r"^no$"):  # a reason is enough: who runs a worker has started no broker
        found.accept(error(Reason.VERSION), 0.0)
