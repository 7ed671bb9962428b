"""The rules of a served plane: what env-servers, brokers and learners do for any client, and for what is none.

An implementation is a server that runs. Who writes one checks it with

    @pytest.mark.parametrize("rule", plane.RULES, ids=str)
    def test_contract(rule):
        rule(plane.env_server("tcp://127.0.0.1:5550", {"id": "CartPole-v1"}))

docs/protocol.md has the rules in prose.
"""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import (
    ANSWERS,
    MAX_HEADER_BYTES,
    PROTOCOL_VERSION,
    Frames,
    Header,
    Kind,
    Plane,
    Reason,
    pack_header,
)
from zerobeast.common.wire.records import action_record
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.testing.rules import rule, rules_in
from zerobeast.tools.chaos.fuzz_peer import REQUESTS, RawPeer, message

R = TypeVar("R")
LIMIT_S = 30.0  #: for a server to do what it is asked
AGAIN_S = 0.1  #: between messages that are sent until they are answered


class Request(NamedTuple):
    """A request without its address."""

    kind: Kind
    body: tuple[Any, ...]
    frames: Frames


class Counts(NamedTuple):
    """What a server shows of itself."""

    sessions: int  #: of clients that are here
    refused: int  #: messages so far
    work: int  #: done so far, in any unit


@dataclass(frozen=True)
class Server:
    """A server that runs and has room.

    Attributes:
      endpoint: where it listens.
      plane: what it serves.
      terms: of a HELLO that it accepts from any number of clients.
      request: request n of a session, from 1, given what WELCOME offered. Equal requests have equal answers.
      misfits: changes that make terms unacceptable for ever.
      counts: reads its page, if it has one.
      turn: gives it a turn, if it has no thread or process of its own.
      held: within it no request is answered, if the server answers in its own time.
      impatient: within it the server ends sessions that have not asked for anything yet.
    """

    endpoint: str
    plane: Plane
    terms: Mapping[str, Any]
    request: Callable[[int, Mapping[str, Any]], Request]
    misfits: tuple[Mapping[str, Any], ...] = tuple({"num_envs": n} for n in (0, -1, 1.5, "many", None, 10**9))
    counts: Callable[[], Counts] | None = None
    turn: Callable[[], object] = lambda: None
    held: Callable[[], AbstractContextManager[None]] | None = None
    impatient: Callable[[], AbstractContextManager[None]] | None = None


def env_server(endpoint: str, env: Mapping[str, Any], num_envs: int = 2) -> Server:
    """An env-server in a process of its own, and an environment that it has."""

    def request(number: int, offer: Mapping[str, Any]) -> Request:
        if number == 1:
            return Request(Kind.RESET, (), ())
        space = EnvSpec.from_wire(offer["env"]).action
        return Request(Kind.STEP, (), (np.zeros(num_envs, action_record(space).dtype),))

    return Server(endpoint, Plane.STEPS, {"env": dict(env), "num_envs": num_envs, "seed": 0}, request)


class Heard(NamedTuple):
    """A message of the server."""

    header: Header
    frames: tuple[bytes, ...]


class Peer:
    """A client that is driven by hand, and that may send anything."""

    def __init__(self, server: Server, sender: int = 0, slot: int = 0) -> None:
        self.server, self.slot, self.epoch = server, slot, 0
        self.offer: Mapping[str, Any] = {}
        self.resources = ExitStack()
        context = Context()
        self.resources.callback(context.term)
        self.port = ClientPort(context, server.plane, server.endpoint, sender or random_id())
        self.resources.callback(self.port.close)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.resources.close()

    def header(self, kind: Kind, seq: int = 0, body: tuple[Any, ...] = ()) -> Header:
        """A header of the session."""
        return Header(kind, self.port.sender, self.slot, self.epoch, seq, body)

    def send(self, header: Header, frames: Frames = ()) -> None:
        """Send a message once the server takes one."""
        until(self.server, lambda: self.port.send(header, *frames))

    def heard(self) -> Heard | None:
        """The next message for this slot, apart from greetings of a server that has just been reached."""
        while found := self.port.receive():
            header = found.header
            if header.slot == self.slot and not (header.kind is Kind.HERE and header.seq == 0):
                return Heard(header, tuple(found.frames()))
        return None

    def sent_until(self, header: Header, frames: Frames, wanted: Callable[[Header], bool]) -> Heard:
        """Send a message, again and again, until an answer comes that is wanted."""
        next_at = 0.0

        def found() -> Heard | None:
            nonlocal next_at
            if time.monotonic() >= next_at and self.port.send(header, *frames):
                next_at = time.monotonic() + AGAIN_S
            heard = self.heard()
            return heard if heard and wanted(heard.header) else None

        return until(self.server, found)

    def hello(self, **changes: Any) -> Header:
        """The answer to a HELLO."""
        hello = Header(Kind.HELLO, self.port.sender, self.slot, body=({**self.server.terms, **changes},))
        answer = self.sent_until(hello, (), lambda header: header.kind in (Kind.WELCOME, Kind.ERROR)).header
        if answer.kind is Kind.WELCOME:
            self.epoch, self.offer = answer.epoch, answer.body[0]
        return answer

    def greets(self) -> bool:
        """Whether the next answer to a HELLO is WELCOME."""
        return self.hello().kind is Kind.WELCOME

    def welcomed(self) -> "Peer":
        """This client, once it has a session."""
        answer = self.hello()
        assert answer.kind is Kind.WELCOME, f"good terms are answered with {answer}"
        return self

    def request(self, number: int) -> tuple[Header, Frames]:
        """Request `number` of the session."""
        kind, body, frames = self.server.request(number, self.offer)
        return self.header(kind, number, body), frames

    def push(self, number: int) -> None:
        """Send a request once, and wait for nothing."""
        self.send(*self.request(number))

    def answer(self, number: int) -> Heard:
        """The next message that answers a request, well or not."""

        def found() -> Heard | None:
            heard = self.heard()
            answers = heard is not None and heard.header.kind not in (Kind.WELCOME, Kind.HERE)
            return heard if heard and answers and heard.header.seq == number else None

        return until(self.server, found)

    def ask(self, number: int) -> Heard:
        """The answer to a request that is good."""
        self.push(number)
        found = self.answer(number)
        kind = ANSWERS.get(self.server.request(number, self.offer).kind, Kind.ACK)
        assert found.header.kind is kind, f"request {number} is answered with {found.header}"
        assert (found.header.sender, found.header.epoch) == (self.port.sender, self.epoch)
        return found

    def bye(self) -> None:
        """Leave as one that has got no WELCOME, so that it knows no epoch."""
        self.send(Header(Kind.BYE, self.port.sender, self.slot))


def until(server: Server, probe: Callable[[], R | None]) -> R:
    """Give the server turns until `probe` returns something true, and return that."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        server.turn()
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"nothing came for {LIMIT_S:g} s"
        time.sleep(0.001)


def unknown(found: Heard, number: int) -> None:
    """Check that a request was refused since there is no such session."""
    assert found.header.kind is Kind.ERROR, f"it is answered with {found.header}"
    assert (found.header.body[0], found.header.seq) == (Reason.UNKNOWN_SESSION, number)


def raw(server: Server) -> RawPeer:
    """A sender that may send bytes of any kind, once the server listens."""

    def connected() -> RawPeer | None:
        with suppress(OSError):
            return RawPeer(Endpoint.parse(server.endpoint), REQUESTS, b"PUSH")
        return None

    return until(server, connected)


def garbage(server: Server) -> list[list[bytes]]:
    """Messages that no client sends, of which a server refuses each."""

    def entries(*rest: Any, version: int = PROTOCOL_VERSION) -> list[bytes]:
        return [pack([version, *rest])]

    return [
        [b""],
        [b"\xc1"],
        [b"GET / HTTP/1.1\r\n"],
        [b"\x91" * 60_000],
        [bytes(MAX_HEADER_BYTES + 1)],
        [pack({"nd": True, "kind": b"O", "type": "|O", "shape": [1], "data": b"cos\nsystem\n(S'true'\ntR."}), b"x"],
        entries(99, 7, 0, 0, 0),
        entries(int(Kind.HELLO), -7, 0, 0, 0, {}),
        entries(int(Kind.HELLO), 7, 0, 0, 0),
        entries(int(Kind.HELLO), 7, 0, 0, 0, {"env": 5, "num_envs": 1}),
        entries(int(Kind.HELLO), -7, version=PROTOCOL_VERSION + 1),
        entries(int(Kind.HELLO), 7, "laid out otherwise", version=PROTOCOL_VERSION + 1),
        [pack_header(Header(Kind.WELCOME, 7, body=({},)))],
        [pack_header(Header(server.request(1, {}).kind, 7, epoch=5, seq=1, body=server.request(1, {}).body)), b"short"],
    ]


@rule
def hello_is_answered_with_the_epoch_however_often_it_is_sent(server: Server) -> None:
    """A client repeats HELLO until its subscription is in force, and needs the epoch for its requests."""
    with Peer(server) as peer:
        first = peer.welcomed().hello()
        assert first.epoch > 0
        assert first.seq == 0
        assert peer.hello() == first


@rule
def welcome_names_the_newest_request(server: Server) -> None:
    """A client that greets again goes on from there: a number that was used would be taken for a repetition."""
    with Peer(server) as peer:
        peer.welcomed()
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
            until(server, peer.greets)  # an answer as before may be on its way
            peer.ask(1)


@rule
def a_client_of_another_version_is_sent_both_versions(server: Server) -> None:
    """Its user has to see which side is to be replaced, and it can read nothing else of the message."""
    with Peer(server) as peer, raw(server) as old:
        peer.welcomed()
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
    with Peer(server) as peer, raw(server) as stranger:
        peer.welcomed()
        before = server.counts and server.counts()
        messages = garbage(server)
        for number, frames in enumerate(messages, start=1):
            stranger.say(frames)
            peer.ask(number)
        if server.counts and before:
            until(server, lambda: server.counts and server.counts().refused >= before.refused + len(messages))
            assert server.counts().refused == before.refused + len(messages)
            assert server.counts().sessions == before.sessions


@rule
def a_repeated_request_is_answered_again_and_done_once(server: Server) -> None:
    """An answer may have been lost, and a step that is taken twice spoils the data in silence."""
    with Peer(server) as one, Peer(server) as other:
        expected = [other.welcomed().ask(number) for number in (1, 2, 3)]
        between = server.counts and server.counts()
        found = [one.welcomed().ask(number) for number in (1, 2)]
        for _ in range(3):
            assert one.ask(2) == found[-1], "another answer"
        found.append(one.ask(3))
        assert [each.frames for each in found] == [each.frames for each in expected]
        assert [each.header.body for each in found] == [each.header.body for each in expected]
        if server.counts and between:
            with Peer(server) as third:
                done = server.counts().work - between.work
                third.welcomed()
                for number in (1, 2, 3):
                    third.ask(number)
                assert server.counts().work == between.work + 2 * done


@rule
def a_late_request_is_not_done(server: Server) -> None:
    """A request that was repeated can arrive after its successor."""
    with Peer(server) as one, Peer(server) as other:
        expected = [other.welcomed().ask(number) for number in (1, 2, 3)]
        one.welcomed().ask(1)
        one.ask(2)
        one.push(1)
        found = one.ask(3)
        assert (found.header.body, found.frames) == (expected[-1].header.body, expected[-1].frames)


@rule
def a_request_that_is_repeated_during_work_is_answered_with_here(server: Server) -> None:
    """A client that hears nothing takes the connection for dead; and nothing that it sends disturbs the work."""
    if server.held is None:
        return
    with Peer(server) as one, Peer(server) as other:
        expected = [other.welcomed().ask(number) for number in (1, 2, 3)]
        one.welcomed().ask(1)
        other.close()
        with server.held():
            header, frames = one.request(2)
            here = one.sent_until(header, frames, lambda heard: heard.seq == 2).header
            assert here == one.header(Kind.HERE, 2)
            one.push(3)  # too early: it is not done before its turn
        assert one.answer(2).frames == expected[1].frames
        assert one.ask(3).frames == expected[2].frames


@rule
def a_request_of_another_start_is_refused(server: Server) -> None:
    """It belongs to a session that has gone with its server: its memory and its numbers mean nothing here."""
    with Peer(server) as peer:
        epoch = peer.welcomed().epoch
        peer.epoch = epoch ^ 1
        peer.push(1)
        unknown(peer.answer(1), 1)
        peer.epoch = epoch
        peer.ask(1)


@rule
def a_request_without_a_session_is_refused(server: Server) -> None:
    """Its client waits, and greets again at once when it is told."""
    with Peer(server) as peer:
        peer.welcomed()
        peer.slot = 5
        peer.push(1)
        unknown(peer.answer(1), 1)
        peer.slot = 0
        peer.ask(1)


@rule
def streams_of_a_client_are_sessions_of_their_own(server: Server) -> None:
    """An actor plays several groups of environments over one connection."""
    with Peer(server) as peer:
        answers = []
        for slot in (0, 1):
            peer.slot = slot
            answers.append([peer.welcomed().ask(number).frames for number in (1, 2)])
        assert answers[0] == answers[1]
        peer.slot = 0
        peer.ask(3)


@rule
def bye_ends_the_session(server: Server) -> None:
    """A client that leaves in order makes room at once, whether or not it has got WELCOME."""
    with Peer(server) as peer:
        before = server.counts and server.counts()
        peer.welcomed().ask(1)
        peer.bye()
        if server.counts and before:
            until(server, lambda: server.counts and server.counts().sessions == before.sessions)
        if server.plane is not Plane.ROLLOUTS:  # a learner keeps the numbers of those who may come back
            peer.push(2)
            unknown(peer.answer(2), 2)
            assert peer.hello().seq == 0
            peer.ask(1)


@rule
def a_client_that_has_gone_makes_room(server: Server) -> None:
    """A client that was killed says no BYE."""
    peer = Peer(server)
    with closing(peer):
        before = server.counts and server.counts()
        peer.welcomed().ask(1)
    if server.counts and before:
        until(server, lambda: server.counts and server.counts().sessions == before.sessions)
    if server.plane is not Plane.ROLLOUTS:  # as above
        with Peer(server, peer.port.sender) as late:
            late.epoch, late.offer = peer.epoch, peer.offer
            header, frames = late.request(2)
            unknown(late.sent_until(header, frames, lambda heard: heard.kind is Kind.ERROR), 2)


@rule
def a_client_that_does_not_listen_gets_no_session(server: Server) -> None:
    """HELLO costs its sender nothing, so under any number of ids it must not cost the server much."""
    if server.counts is None:
        return
    with Peer(server) as peer, raw(server) as deaf:
        peer.welcomed()
        before = server.counts()
        ids = [random_id() for _ in range(100)]
        deaf.say(*([pack_header(Header(Kind.HELLO, each, body=(dict(server.terms),)))] for each in ids), [b"\xc1"])
        until(server, lambda: server.counts and server.counts().refused > before.refused)
        assert server.counts() == before._replace(refused=before.refused + 1)
        peer.ask(1)


@rule
def a_session_that_asks_for_nothing_ends_and_may_begin_again(server: Server) -> None:
    """A client may greet and then do nothing for ever, and so may thousands."""
    if server.counts is None or server.impatient is None:
        return
    with Peer(server) as asking, Peer(server) as silent:
        asking.welcomed().ask(1)
        before = server.counts()
        silent.welcomed()
        with server.impatient():
            until(server, lambda: server.counts and server.counts().sessions == before.sessions)
        silent.push(1)
        unknown(silent.answer(1), 1)
        silent.welcomed().ask(1)
        asking.ask(2)


@rule
def a_flood_of_one_sender_leaves_the_others_served(server: Server) -> None:
    """A server takes a bounded number of messages in a turn, whatever waits."""
    with Peer(server) as peer, raw(server) as flooding:
        peer.welcomed()
        hello = pack_header(Header(Kind.HELLO, 7, body=(dict(server.terms),)))
        flood = _Flood(flooding.socket, 1000 * (9 * message([b"\xc1"]) + message([hello])))
        served = replace(server, turn=partial(_both, flood.pour, server.turn))
        peer.server = served
        for number in range(1, 6):
            peer.ask(number)


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
