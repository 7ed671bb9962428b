"""A false learner, which publishes weights and news that must not be accepted."""

import math
import random
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import Refusal
from zerobeast.common.wire.codec import unpack
from zerobeast.common.wire.messages import MAX_INTEGER, PROTOCOL_VERSION, TOPIC_BYTES, Kind, Plane, topic
from zerobeast.testing.raw_peer import LIMIT_S, WEIGHTS, RawPeer
from zerobeast_tools.chaos.fuzz_messages import BODY, Case, pack_anything

TOPIC, NEWS_TOPIC = topic(Plane.WEIGHTS, 0), topic(Plane.WEIGHTS, 1)
GENUINE_VERSION = 2**40  #: the first version that a broker has to accept


def capture_version(endpoint: Endpoint) -> list[bytes]:
    """The frames of a real version, from a real learner."""
    with RawPeer(endpoint, WEIGHTS, b"SUB") as peer:
        peer.say([b"\1" + TOPIC])
        return peer.receive()


class _Subscriber(RawPeer):
    """The next connection that a listener accepts. Raises OSError if none comes."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket, self._inbox = listener.accept()[0], b""
        self.socket.settimeout(LIMIT_S)
        self.greet(b"XPUB")


class Forger(AbstractContextManager["Forger"]):
    """Publishes variations of a real version, and of news.

    Args:
      endpoint: where it pretends to be the learner; a path.
      real: frames of a real version.
      rng: makes all choices.
    """

    def __init__(self, endpoint: Endpoint, real: list[bytes], rng: random.Random) -> None:
        self._rng = rng
        self._header: list[Any] = unpack(real[0][TOPIC_BYTES:])
        self._chunks = real[1:]
        self._subscribers: dict[bytes, RawPeer] = {}  #: the newest of each topic
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(LIMIT_S)
        self._listener.bind(f"{endpoint.path}.{WEIGHTS}")
        self._listener.listen()

    def __exit__(self, *_error: object) -> None:
        self._listener.close()
        for peer in self._subscribers.values():
            peer.close()

    def wait_for_subscriber(self) -> None:
        """Wait for the next subscriber. Raises OSError if none comes."""
        peer = _Subscriber(self._listener)
        (subscription,) = peer.receive()
        if former := self._subscribers.pop(subscription[1:], None):
            former.close()
        self._subscribers[subscription[1:]] = peer

    def publish(self, *cases: Case) -> None:
        """Send cases to the subscriber of their topic."""
        for case in cases:
            self._subscribers[case.frames[0][:TOPIC_BYTES]].say(case.frames)

    def genuine(self, version: int = GENUINE_VERSION) -> Case:
        """A version that a broker has to accept after all the forged ones."""
        return self._version(self._body(version), self._chunks, ())

    def genuine_news(self, version: int) -> Case:
        """News that this version exists."""
        return self._news([version, []], ())

    def case(self) -> Case:
        """A version that must not be accepted."""
        draw = self._rng.choice
        return draw([self._garbage, self._foreign, self._other_network, self._other_chunks, self._other_bytes])()

    def case_of_news(self) -> Case:
        """News that must not be accepted."""
        draws: list[Callable[[bytes], Case]] = [self._garbage, self._foreign, self._bad_entries, self._other_version]
        return self._rng.choice(draws)(NEWS_TOPIC)

    def _garbage(self, about: bytes = TOPIC) -> Case:
        headers = [b"", b"\xc1", pack_anything([]), pack_anything([PROTOCOL_VERSION, 99, 0, 0, 0, 0]), b"\x91" * 70_000]
        return Case([about + self._rng.choice(headers), *self._chunks[: self._rng.randrange(2)]], ("header",))

    def _foreign(self, about: bytes = TOPIC) -> Case:
        if self._rng.random() < 0.5:
            return Case([about + pack_anything([PROTOCOL_VERSION + 1, 12, 0]), *self._chunks], ("version",))
        kind = self._rng.choice([Kind.ACK, Kind.OBS, Kind.BYE])
        return Case([about + pack_anything([PROTOCOL_VERSION, kind, 0, 0, 0, 0, *BODY[kind]])], ("kind",))

    def _bad_entries(self, _about: bytes) -> Case:
        """News whose versions or divergences are not numbers, or not finite."""
        entries: list[Any] = [1, [], [1, 2], [-1, 0, 0.5], [1, -1, 0.5], [1, 2, math.nan], [1, 2, math.inf], [1, 2, 3]]
        bodies = [[1, [[1, 2, 0.5], entry]] for entry in entries] + [[1], [1.5, []], ["1", []], [1, {}], [1, [], -1]]
        return self._news(self._rng.choice(bodies), ("header",))

    def _other_version(self, _about: bytes) -> Case:
        """News with frames besides the header."""
        frames, _ = self._news([self._rng.randrange(MAX_INTEGER), []], ())
        return Case([*frames, *self._chunks], ("payload",))

    def _other_network(self) -> Case:
        place = self._rng.choice([1, 2])  # layout_id or n_bytes
        body = self._body(self._rng.randrange(2**50))
        body[place] = self._rng.choice([0, 1, MAX_INTEGER])
        return self._version(body, self._chunks, ("layout",))

    def _other_chunks(self) -> Case:
        """Too few bytes, too many, or too many pieces."""
        first, *rest = self._chunks
        chunks: list[bytes] = self._rng.choice(
            [
                [],
                [first[:-1], *rest],
                [first + b"x", *rest],
                [first[:5], first[5:], *rest],
                [*self._chunks, b""],
                [b""] * 1000,
            ]
        )
        return self._version(self._body(self._rng.randrange(2**41, 2**50)), chunks, ("payload",))

    def _other_bytes(self) -> Case:
        """A wrong checksum, which is not noticed if another version waits behind this one."""
        body = self._body(0)
        body[3] ^= 1 << self._rng.randrange(32)
        return self._version(body, self._chunks, None)

    def _body(self, version: int) -> list[Any]:
        return [version, *self._header[7:]]

    def _news(self, body: list[Any], refused: tuple[Refusal, ...]) -> Case:
        header = [PROTOCOL_VERSION, Kind.NEWS, 0, 0, self._header[4], 1, *body]
        return Case([NEWS_TOPIC + pack_anything(header)], refused)

    def _version(self, body: list[Any], chunks: list[bytes], refused: tuple[Refusal, ...] | None) -> Case:
        header = [PROTOCOL_VERSION, Kind.WEIGHTS, 0, 0, self._header[4], body[0], *body]
        return Case([TOPIC + pack_anything(header), *chunks], refused)
