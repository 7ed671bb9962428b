"""The rules of a served plane: what env-servers, brokers and learners do for any client, and for what is none.

An implementation is a server that runs. Who writes one checks it with

    @pytest.mark.parametrize("rule", plane.RULES, ids=str)
    def test_contract(rule):
        rule(served.env_server("tcp://127.0.0.1:5550", {"id": "CartPole-v1"}))

docs/protocol.md has the rules in prose.
"""

import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from unittest import SkipTest

from zerobeast.common.transport import random_id
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import (
    PROTOCOL_VERSION,
    Header,
    Kind,
    Plane,
    Reason,
    pack_header,
)
from zerobeast.testing.driven_peers import AGAIN_S, Peer, Server, check_unknown, connect_raw, garbage, turn_until
from zerobeast.testing.raw_peer import message
from zerobeast.testing.rules import rule, rules_in


@rule
def hello_is_answered_with_the_epoch_however_often_it_is_sent(server: Server) -> None:
    """A client repeats HELLO until its subscription is in force, and needs the epoch for its requests."""
    with Peer(server) as peer:
        first = peer.open_session().hello()
        assert first.epoch > 0
        assert first.seq == 0
        assert peer.hello() == first


@rule
def welcome_names_the_newest_request(server: Server) -> None:
    """A client that greets again goes on from there: a number that was used would be taken for a repetition."""
    with Peer(server) as peer:
        peer.open_session()
        for number in (1, 2):
            peer.ask(number)
        assert peer.hello().seq == 2
        peer.ask(3)


@rule
def terms_that_do_not_fit_are_refused_and_better_ones_accepted(server: Server) -> None:
    """A client shows the reason to its user; its connection is not at fault."""
    for changes in server.misfits:
        with Peer(server) as peer:
            answer = peer.hello(**changes)
            assert (answer.kind, answer.seq) == (Kind.ERROR, 0), f"{changes} is answered with {answer}"
            reason, sentence = answer.body
            assert reason == Reason.TERMS
            assert sentence
            turn_until(server, peer.greets)  # an answer as before may be on its way
            peer.ask(1)


@rule
def a_client_of_another_version_is_sent_both_versions(server: Server) -> None:
    """Its user has to see which side is to be replaced, and it can read nothing else of the message."""
    with Peer(server) as peer, connect_raw(server) as old:
        peer.open_session()
        for version in (PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1):
            old.say([pack([version, int(Kind.HELLO), peer.port.sender, 3, 0, 0, {}])])
            answer = Peer.answer(peer, 0).header
            assert (answer.kind, answer.body[0]) == (Kind.ERROR, Reason.VERSION)
            assert {str(version), str(PROTOCOL_VERSION)} <= {*filter(str.isdigit, _words(answer.body[1]))}
        peer.ask(1)


def _words(sentence: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in sentence).split()


@rule
def garbage_costs_its_sender_a_counter_and_others_nothing(server: Server) -> None:
    """Anybody can reach a port, so no message may end a server or the session of another client."""
    with Peer(server) as peer, connect_raw(server) as stranger:
        peer.open_session()
        before = server.counts and server.counts()
        messages = garbage(server)
        for number, frames in enumerate(messages, start=1):
            stranger.say(frames)
            peer.ask(number)
        if server.counts and before:
            turn_until(server, lambda: server.counts and server.counts().refused >= before.refused + len(messages))
            assert server.counts().refused == before.refused + len(messages)
            assert server.counts().sessions == before.sessions


@rule
def a_repeated_request_is_answered_again_and_done_once(server: Server) -> None:
    """An answer may have been lost, and a step that is taken twice spoils the data in silence."""
    with Peer(server) as one, Peer(server) as other:
        expected = [other.open_session().ask(number) for number in (1, 2, 3)]
        between = server.counts and server.counts()
        found = [one.open_session().ask(number) for number in (1, 2)]
        for _ in range(3):
            assert one.ask(2) == found[-1], "another answer"
        found.append(one.ask(3))
        assert [each.frames for each in found] == [each.frames for each in expected]
        assert [each.header.body for each in found] == [each.header.body for each in expected]
        if server.counts and between:
            with Peer(server) as third:
                done = server.counts().work - between.work
                third.open_session()
                for number in (1, 2, 3):
                    third.ask(number)
                assert server.counts().work == between.work + 2 * done


@rule
def a_late_request_is_not_done(server: Server) -> None:
    """A request that was repeated can arrive after its successor."""
    with Peer(server) as one, Peer(server) as other:
        expected = [other.open_session().ask(number) for number in (1, 2, 3)]
        one.open_session().ask(1)
        one.ask(2)
        one.push(1)
        found = one.ask(3)
        assert (found.header.body, found.frames) == (expected[-1].header.body, expected[-1].frames)


@rule
def a_request_that_is_repeated_during_work_is_answered_with_here(server: Server) -> None:
    """A client that hears nothing takes the connection for dead; and nothing that it sends disturbs the work."""
    if server.held is None:
        raise SkipTest("its answers cannot be held")
    with Peer(server) as one, Peer(server) as other:
        expected = [other.open_session().ask(number) for number in (1, 2, 3)]
        one.open_session().ask(1)
        other.close()
        with server.held():
            header, frames = one.request(2)
            here = one.send_until(header, frames, lambda heard: heard.seq == 2).header
            assert here == one.header(Kind.HERE, 2)
            one.push(3)  # too early: it is not done before its turn
        assert one.answer(2).frames == expected[1].frames
        assert one.ask(3).frames == expected[2].frames


@rule
def a_request_of_another_start_is_refused(server: Server) -> None:
    """It belongs to a session that has gone with its server: its memory and its numbers mean nothing here."""
    with Peer(server) as peer:
        epoch = peer.open_session().epoch
        peer.epoch = epoch ^ 1
        peer.push(1)
        check_unknown(peer.answer(1), 1)
        peer.epoch = epoch
        peer.ask(1)


@rule
def a_request_without_a_session_is_refused(server: Server) -> None:
    """Its client waits, and greets again at once when it is told."""
    with Peer(server) as peer:
        peer.open_session()
        peer.slot = 5
        peer.push(1)
        check_unknown(peer.answer(1), 1)
        peer.slot = 0
        peer.ask(1)


@rule
def streams_of_a_client_are_sessions_of_their_own(server: Server) -> None:
    """An actor plays several groups of environments over one connection."""
    with Peer(server) as peer:
        answers = []
        for slot in (0, 1):
            peer.slot = slot
            answers.append([peer.open_session().ask(number).frames for number in (1, 2)])
        assert answers[0] == answers[1]
        peer.slot = 0
        peer.ask(3)


@rule
def bye_ends_the_session(server: Server) -> None:
    """A client that leaves in order makes room at once, whether or not it has got WELCOME."""
    with Peer(server) as peer:
        before = server.counts and server.counts()
        peer.open_session().ask(1)
        peer.bye()
        if server.counts and before:
            turn_until(server, lambda: server.counts and server.counts().sessions == before.sessions)
        if server.plane is not Plane.ROLLOUTS:  # a learner keeps the numbers of those who may come back
            peer.push(2)
            check_unknown(peer.answer(2), 2)
            assert peer.hello().seq == 0
            peer.ask(1)


@rule
def a_client_that_has_gone_makes_room(server: Server) -> None:
    """A client that was killed says no BYE."""
    peer = Peer(server)
    with closing(peer):
        before = server.counts and server.counts()
        peer.open_session().ask(1)
    if server.counts and before:
        turn_until(server, lambda: server.counts and server.counts().sessions == before.sessions)
    if server.plane is not Plane.ROLLOUTS:  # as above
        turn_until(server, partial(_is_forgotten, server, peer))


def _is_forgotten(server: Server, gone: Peer) -> bool:
    time.sleep(AGAIN_S)  # a client that is back before its old connection has ended has never gone
    with Peer(server, gone.port.sender) as late:
        late.epoch, late.offer = gone.epoch, gone.offer
        header, frames = late.request(2)
        found = late.send_until(header, frames, lambda heard: heard.seq == 2)
        if found.header.kind is Kind.ERROR:
            check_unknown(found, 2)
        return found.header.kind is Kind.ERROR


@rule
def a_client_that_does_not_listen_gets_no_session(server: Server) -> None:
    """HELLO costs its sender nothing, so under any number of ids it must not cost the server much."""
    if server.counts is None:
        raise SkipTest("it has no page")
    with Peer(server) as peer, connect_raw(server) as deaf:
        peer.open_session()
        before = server.counts()
        ids = [random_id() for _ in range(100)]
        deaf.say(*([pack_header(Header(Kind.HELLO, each, body=(dict(server.terms),)))] for each in ids), [b"\xc1"])
        turn_until(server, lambda: server.counts and server.counts().refused > before.refused)
        assert server.counts() == before._replace(refused=before.refused + 1)
        peer.ask(1)


@rule
def a_session_that_asks_for_nothing_ends_and_may_begin_again(server: Server) -> None:
    """A client may greet and then do nothing for ever, and so may thousands."""
    if server.counts is None or server.impatient is None:
        raise SkipTest("it has no page, or its patience is what it is")
    with Peer(server) as asking, Peer(server) as silent:
        asking.open_session().ask(1)
        before = server.counts()
        silent.open_session()
        with server.impatient():
            turn_until(server, lambda: server.counts and server.counts().sessions == before.sessions)
        silent.push(1)
        check_unknown(silent.answer(1), 1)
        silent.open_session().ask(1)
        asking.ask(2)


@rule
def a_flood_of_one_sender_leaves_the_others_served(server: Server) -> None:
    """A server takes a bounded number of messages in a turn, whatever waits."""
    with Peer(server) as peer, connect_raw(server) as flooding:
        peer.open_session()
        hello = pack_header(Header(Kind.HELLO, 7, body=(dict(server.terms),)))
        flood = _Flood(flooding.socket, 1000 * (9 * message([b"\xc1"]) + message([hello])))
        served = replace(server, turn=partial(_both, flood.pour, server.turn))
        peer.server = served
        peer.ask(1)
        peer.ask(2)


def _both(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


class _Flood:
    """Bytes that are sent over and over, as fast as the other side takes them."""

    def __init__(self, connection: socket.socket, content: bytes) -> None:
        self._socket, self._content, self._place = connection, content, 0
        connection.settimeout(0.0)

    def pour(self) -> None:
        """Send as much as there is room for."""
        try:
            self._place += self._socket.send(self._content[self._place :])
            self._place %= len(self._content)
        except BlockingIOError:
            pass


RULES = rules_in(globals())
