"""A server that runs, as the rules of a plane see it, and a client that is driven by hand and may send anything."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
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
from zerobeast.testing.raw_peer import REQUESTS, RawPeer

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


class ReceivedMessage(NamedTuple):
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
        turn_until(self.server, lambda: self.port.send(header, *frames))

    def next_message(self) -> ReceivedMessage | None:
        """The next message for this slot, apart from greetings of a server that has just been reached."""
        while found := self.port.receive():
            header = found.header
            if header.slot == self.slot and not (header.kind is Kind.HERE and header.seq == 0):
                return ReceivedMessage(header, tuple(found.frames()))
        return None

    def send_until(self, header: Header, frames: Frames, wanted: Callable[[Header], bool]) -> ReceivedMessage:
        """Send a message, again and again, until an answer comes that is wanted."""
        next_at = 0.0

        def found() -> ReceivedMessage | None:
            nonlocal next_at
            if time.monotonic() >= next_at and self.port.send(header, *frames):
                next_at = time.monotonic() + AGAIN_S
            heard = self.next_message()
            return heard if heard and wanted(heard.header) else None

        return turn_until(self.server, found)

    def hello(self, **changes: Any) -> Header:
        """The answer to a HELLO."""
        hello = Header(Kind.HELLO, self.port.sender, self.slot, body=({**self.server.terms, **changes},))
        answer = self.send_until(hello, (), lambda header: header.kind in (Kind.WELCOME, Kind.ERROR)).header
        if answer.kind is Kind.WELCOME:
            self.epoch, self.offer = answer.epoch, answer.body[0]
        return answer

    def greets(self) -> bool:
        """Whether the next answer to a HELLO is WELCOME."""
        return self.hello().kind is Kind.WELCOME

    def open_session(self) -> "Peer":
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

    def answer(self, number: int) -> ReceivedMessage:
        """The next message that answers a request, well or not."""

        def found() -> ReceivedMessage | None:
            heard = self.next_message()
            answers = heard is not None and heard.header.kind not in (Kind.WELCOME, Kind.HERE)
            return heard if heard and answers and heard.header.seq == number else None

        return turn_until(self.server, found)

    def ask(self, number: int) -> ReceivedMessage:
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


def turn_until(server: Server, probe: Callable[[], R | None]) -> R:
    """Give the server turns until `probe` returns something true, and return that."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        server.turn()
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"nothing came for {LIMIT_S:g} s"
        time.sleep(0.001)


def check_unknown(found: ReceivedMessage, number: int) -> None:
    """Check that a request was refused since there is no such session."""
    assert found.header.kind is Kind.ERROR, f"it is answered with {found.header}"
    assert (found.header.body[0], found.header.seq) == (Reason.UNKNOWN_SESSION, number)


def connect_raw(server: Server) -> RawPeer:
    """A sender that may send bytes of any kind, once the server listens."""

    def connect_once() -> RawPeer | None:
        with suppress(OSError):
            return RawPeer(Endpoint.parse(server.endpoint), REQUESTS, b"PUSH")
        return None

    return turn_until(server, connect_once)


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
