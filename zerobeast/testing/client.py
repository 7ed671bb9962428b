"""The rules of a client of a plane: what it does when messages get lost, a server restarts, or one never answers.

An implementation is a client and a good answer to each of its requests; the server is part of the rules:

    @pytest.mark.parametrize("rule", client.RULES, ids=str)
    def test_contract(rule, tmp_path):
        rule(Client(Plane.STEPS, {"env": SPEC.to_wire()}, answer, opened), f"ipc://{tmp_path}/s")
"""

import threading
from contextlib import ExitStack
from dataclasses import replace
from unittest import SkipTest

from zerobeast.common.errors import (
    BeastError,
    ConfigError,
    PeerLost,
    RemoteProtocolError,
    RequestRefused,
    VersionMismatch,
)
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import (
    PROTOCOL_VERSION,
    Header,
    Kind,
    Plane,
    Reason,
    pack_header,
    topic,
)
from zerobeast.testing.rules import rule, rules_in
from zerobeast.testing.script_server import (
    LONG_S,
    SOON_S,
    Ask,
    Client,
    Script,
    expect_end,
    is_hello,
    is_request,
    replace_answer,
    serve_script,
)


@rule
def it_greets_until_it_is_welcomed(client: Client, endpoint: str) -> None:
    """A subscription takes an unknown time to reach a server, so the first answers may be lost."""
    lost = [replace_answer(lambda _script, _header: None, of=is_hello)] * 3
    with serve_script(client, endpoint, *lost) as script, client.opened(endpoint, LONG_S) as ask:
        ask()
        hellos = script.of(Kind.HELLO)
        assert len(hellos) > 3
        assert {(each.epoch, each.seq) for each in hellos} == {(0, 0)}
        assert is_request(script.heard[-1][0])


@rule
def its_requests_have_the_epoch_and_the_numbers_after_that_of_welcome(client: Client, endpoint: str) -> None:
    """A server that has the session still takes an older number for a repetition."""
    start = 0 if client.plane is Plane.ROLLOUTS else 41  # a learner is told how they go on
    with serve_script(client, endpoint, start=start) as script, client.opened(endpoint, LONG_S) as ask:
        for _ in range(2):
            ask()
        asked = script.of()
        assert {each.epoch for each in asked} == {script.epoch}
        assert [each.seq for each in asked] == [*range(start + 1, start + 1 + len(asked))]


@rule
def what_was_lost_with_a_connection_is_sent_again(client: Client, endpoint: str) -> None:
    """A server that has just heard of a client sends HERE: what the client had sent before is gone."""

    def lose(script: Script, header: Header) -> None:
        script.say(header, Kind.HERE, seq=0)

    # with a larger window, the answer to what was sent after it would count for both
    alone = replace(client, offer={name: 1 if name == "window" else value for name, value in client.offer.items()})
    with serve_script(alone, endpoint, replace_answer(lose)) as script, client.opened(endpoint, LONG_S) as ask:
        ask()
        asked = [(header, frames) for header, frames in script.heard if is_request(header)]
        same = [each for each in asked if each[0].seq == asked[0][0].seq]
        assert len(same) > 1
        assert same[0] == same[1]


@rule
def answers_to_something_else_are_ignored(client: Client, endpoint: str) -> None:
    """They may be late, of an earlier start of the server, or of a broken one."""

    def stray(script: Script, header: Header) -> None:
        alien = pack_header(Header(Kind.WEIGHTS, header.sender, 0, script.epoch, header.seq, (1, 1, 1, 1, 1)))
        another = pack_header(Header(Kind.BYE, header.sender + 1, header.slot, script.epoch))
        for content in (b"", b"\xc1", alien, another):
            script.port.pollable[1].send(topic(client.plane, header.sender) + content)
        script.reply(header, epoch=script.epoch + 1)
        script.reply(header, slot=9)
        script.say(header, Kind.ERROR, str(Reason.TERMS), "late", seq=header.seq + 1000)
        script.say(header, Kind.ERROR, str(Reason.TERMS), "of another", epoch=script.epoch + 1)
        script.say(header, Kind.BYE, epoch=script.epoch + 1)
        script.reply(header)

    with serve_script(client, endpoint, replace_answer(stray)) as script, client.opened(endpoint, LONG_S) as ask:
        for _ in range(2):
            ask()
        numbers = [each.seq for each in script.of()]
        assert numbers == sorted(set(numbers)), "each is sent once"


@rule
def the_answer_to_the_request_before_is_not_taken_for_that_to_this_one(client: Client, endpoint: str) -> None:
    """Its rows are of a state that has passed."""
    if client.plane is Plane.ROLLOUTS:
        raise SkipTest("a learner's answer counts what was used, of whichever request")

    def late(script: Script, header: Header) -> None:
        script.reply(header, seq=header.seq - 1)

    with serve_script(client, endpoint, replace_answer(late)) as script, client.opened(endpoint, LONG_S) as ask:
        ask()
        asked = [each.seq for each in script.of()]
        assert asked.count(asked[0]) > 1, "it went on without an answer"


@rule
def a_lost_session_is_opened_again_or_reported(client: Client, endpoint: str) -> None:
    """A server closes sessions that are silent for long; a client whose episodes went with it has to say so."""

    def forget(script: Script, header: Header) -> None:
        script.say(header, Kind.ERROR, str(Reason.UNKNOWN_SESSION), "who is it?")

    with serve_script(client, endpoint) as script, client.opened(endpoint, LONG_S) as ask:
        ask()
        script.steps.append(replace_answer(forget))
        _goes_on(client, ask)


@rule
def a_restarted_server_gets_hello_and_requests_of_a_new_session(client: Client, endpoint: str) -> None:
    """The sessions of before are gone, and their numbers mean nothing to it."""
    with ExitStack() as stack:
        with serve_script(client, endpoint) as first:
            ask = stack.enter_context(client.opened(endpoint, LONG_S))
            ask()
        with serve_script(client, endpoint, epoch=first.epoch + 1) as second:
            _goes_on(client, ask)
            if client.survives:
                assert second.of(Kind.HELLO)
                assert second.of()[-1].epoch == second.epoch


def _goes_on(client: Client, ask: Ask) -> None:
    try:
        for _ in range(2):
            ask()
    except PeerLost:
        assert not client.survives, "it has given up"
    else:
        assert client.survives, "it hides that its session is lost"


@rule
def a_refusal_ends_it_with_the_reason(client: Client, endpoint: str) -> None:
    """No other try can help, and its user has to learn why."""

    def refuse(script: Script, header: Header) -> None:
        script.say(header, Kind.ERROR, str(Reason.TERMS), "this \x1b[2J does not fit")

    for of in (is_hello, is_request):
        with serve_script(client, endpoint, *[replace_answer(refuse, of=of)] * 20):
            refused = expect_end(client, endpoint, RequestRefused)
        assert isinstance(refused, RequestRefused)
        assert refused.reason == Reason.TERMS
        assert str(refused).isprintable()


@rule
def a_server_without_room_is_asked_again(client: Client, endpoint: str) -> None:
    """Others may leave."""

    def busy(script: Script, header: Header) -> None:
        script.say(header, Kind.ERROR, str(Reason.BUSY), "full")

    with serve_script(client, endpoint, replace_answer(busy, of=is_hello)), client.opened(endpoint, LONG_S) as ask:
        ask()


@rule
def a_server_of_another_version_ends_it(client: Client, endpoint: str) -> None:
    """Nothing else of its messages can be understood."""

    def other(script: Script, header: Header) -> None:
        entries = [PROTOCOL_VERSION + 1, int(Kind.ERROR), header.sender]
        script.port.pollable[1].send(topic(client.plane, header.sender) + pack(entries))

    with serve_script(client, endpoint, *[replace_answer(other, of=is_hello)] * 50):
        error = expect_end(client, endpoint, VersionMismatch)
    assert endpoint in str(error)


@rule
def an_absent_server_is_a_lost_peer(client: Client, endpoint: str) -> None:
    """Whoever waits for it decides what to do then."""
    expect_end(client, endpoint, PeerLost, limit_s=SOON_S)


@rule
def a_server_that_does_not_answer_is_a_lost_peer(client: Client, endpoint: str) -> None:
    """Its connection may be dead, or it may hang."""
    if client.plane is Plane.ROLLOUTS:
        raise SkipTest("a learner answers once it has learned from what it got")
    with serve_script(client, endpoint, *[replace_answer(lambda _script, _header: None)] * 1000):
        expect_end(client, endpoint, PeerLost, limit_s=SOON_S)


@rule
def an_offer_that_it_cannot_use_is_an_error(client: Client, endpoint: str) -> None:
    """Rows of another layout would be read as nonsense."""
    if client.misfit is None:
        raise SkipTest("it can use any offer")
    with serve_script(replace(client, offer=client.misfit), endpoint):
        error = expect_end(client, endpoint, BeastError, limit_s=5.0)
    assert isinstance(error, RemoteProtocolError | ConfigError)


@rule
def it_leaves_in_order(client: Client, endpoint: str) -> None:
    """The server ends its session at once, and no socket is left open."""
    with serve_script(client, endpoint) as script:
        with client.opened(endpoint, LONG_S) as ask:
            ask()
        for _ in range(3000):
            if script.gone and script.of(Kind.BYE):
                break
            threading.Event().wait(0.01)
        assert script.of(Kind.BYE)
        assert script.gone


RULES = rules_in(globals())
