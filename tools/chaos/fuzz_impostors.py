"""Hostile ends of a session, for what comes after HELLO: a client, and a learner that is none."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from zerobeast.common.errors import BeastError, Refusal, RemoteProtocolError
from zerobeast.common.runtime.endpoints import Endpoint
from zerobeast.common.wire.codec import unpack
from zerobeast.common.wire.messages import (
    MAX_EPISODES,
    MAX_INTEGER,
    PROTOCOL_VERSION,
    TOPIC_BYTES,
    Header,
    Kind,
    Plane,
    pack_header,
    topic,
    unpack_header,
)
from zerobeast.common.wire.records import action_record, rollout_record, step_record
from zerobeast.common.wire.specs import PolicySpec
from zerobeast.tools.chaos.fuzz_hello import CARTPOLE, HELLOS, UNROLL_LENGTH
from zerobeast.tools.chaos.fuzz_messages import BODY, REQUEST, Case, packed
from zerobeast.tools.chaos.fuzz_peer import LIMIT_S, REPLIES, REQUESTS, WEIGHTS, RawPeer, address, message

ASK_PERIOD_S = 0.5
ACTION_BYTES = action_record(CARTPOLE.action).row_bytes
STEP_BYTES = step_record(CARTPOLE).row_bytes
REPLAYED = {
    Plane.STEPS: (Kind.STEP, Kind.RESET),
    Plane.INFERENCE: (Kind.INFER,),
    Plane.ROLLOUTS: (Kind.ROLLOUT,),
}
TOPIC = topic(Plane.WEIGHTS, 0)
GENUINE = 2**40  #: the one version that a broker has to take


class Visitor:
    """One session on one plane, opened as an honest client would.

    Args:
      endpoint: of the server.
      plane: whose.
      rng: draws its id and what it says.
      asks: makes one good request first, as every session does that is used.

    Raises:
      BeastError: it is not welcomed.
    """

    def __init__(self, endpoint: Endpoint, plane: Plane, rng: random.Random, *, asks: bool = True) -> None:
        self.plane, self.rng = plane, rng
        self.sender = rng.randrange(1, 2**63)
        self.seq = 0
        self._ear = RawPeer(endpoint, REPLIES, b"SUB")
        self._mouth = RawPeer(endpoint, REQUESTS, b"PUSH")
        self._ear.send(message([b"\1" + topic(plane, self.sender)]))
        self._deadline = time.monotonic() + LIMIT_S
        self.welcome = self._greet()
        if asks and plane is not Plane.ROLLOUTS:
            self._ask()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._mouth.send(message([pack_header(self.header(Kind.BYE, 0))]))
        self._ear.close()
        self._mouth.close()

    def say(self, *cases: Case) -> None:
        """Send them; what the server answers is never read."""
        self._mouth.send(*(message(case.frames) for case in cases))

    def header(self, kind: Kind, seq: int, body: tuple[Any, ...] = ()) -> Header:
        """A header of this session."""
        return Header(kind, self.sender, 0, self.welcome.epoch, seq, body)

    def case(self) -> Case:
        """A request that is well addressed and wrong, late or repeated; its number stays free or is used up."""
        wrong: dict[Plane, list[Callable[[], Case]]] = {
            Plane.STEPS: [self._wrong_step],
            Plane.INFERENCE: [self._wrong_infer],
            Plane.ROLLOUTS: [self._wrong_rollout, self._early_rollout],
        }
        return self.rng.choice([self._foreign_epoch, self._replay, *wrong[self.plane]])()

    def _case(self, kind: Kind, seq: int, *frames: bytes, body: tuple[Any, ...] = (), refused: Any = ()) -> Case:
        return Case([pack_header(self.header(kind, seq, body)), *frames], refused)

    def _foreign_epoch(self) -> Case:
        """A request to another start of the server."""
        kind = REQUEST[self.plane]
        epoch = self.welcome.epoch ^ self.rng.choice([1, 2**40, self.welcome.epoch])
        return Case([pack_header(Header(kind, self.sender, 0, epoch, self.seq + 1, BODY[kind])), b"rows"], ("session",))

    def _wrong_step(self) -> Case:
        rng = self.rng
        if rng.random() < 0.5:
            size = rng.choice([0, 1, ACTION_BYTES - 1, ACTION_BYTES + 1, 2 * ACTION_BYTES, 100_000])
            return self._case(Kind.STEP, self.seq + 1, rng.randbytes(size), refused=("payload",))
        row = np.zeros(1, action_record(CARTPOLE.action).dtype)
        row["action"] = rng.choice([-1, 2, 99, 2**62, -(2**63)])
        return self._case(Kind.STEP, rng.choice([self.seq + 1, 2**63 - 1]), row.tobytes(), refused=("action",))

    def _replay(self) -> Case:
        """The number of a request that was taken, or of none at all: it is answered again or ignored."""
        kind = self.rng.choice(REPLAYED[self.plane])
        return self._case(kind, self.rng.randrange(min(1, self.seq) + 1), body=BODY[kind])

    def _wrong_infer(self) -> Case:
        size = self.rng.choice([0, 1, STEP_BYTES - 1, STEP_BYTES + 1, 2 * STEP_BYTES, 100_000])
        frames = [self.rng.randbytes(size), *[b"more"] * self.rng.randrange(2)]
        return self._case(Kind.INFER, self.seq + 1, *frames, body=(True,), refused=("payload",))

    def _wrong_rollout(self) -> Case:
        """Something that cannot be trained on. It uses its number up, unless too many such wait already."""
        rng, self.seq = self.rng, self.seq + 1
        policy = PolicySpec.from_wire(self.welcome.body[0]["policy"])
        rows = np.zeros(1, rollout_record(CARTPOLE, policy, UNROLL_LENGTH).dtype)
        name, value = rng.choice(
            [
                ("obs", np.nan),
                ("reward", np.inf),
                ("behaviour_logits", -np.inf),
                ("value", np.nan),
                ("policy_version", -1),
                ("last_action", rng.choice([-1, 2, 2**62])),
            ]
        )
        rows[name][0, rng.randrange(rows[name].shape[1])] = value
        episodes = rng.choice([[[1e300, 1]], [[float("nan"), 1]], [[1.0, 0]], [["x", 1]], [[1.0]], [5]])
        n_rows, episodes, payload = rng.choice(
            [
                (1, [], rows.tobytes()),
                (1, [], rows.tobytes()[:-1]),
                (rng.choice([0, 2, 2**62]), [], rows.tobytes()),
                (1, episodes, rows.tobytes()),
                (1, [[1.0, 1]] * (MAX_EPISODES + 1), rows.tobytes()),
            ]
        )
        header = packed(
            [1, int(Kind.ROLLOUT), self.sender, 0, self.welcome.epoch, self.seq, n_rows, episodes],
        )
        return Case([header, payload], ("values", "payload", "episodes", "window", "session"))

    def _early_rollout(self) -> Case:
        """One that overtakes another. Before there is any, every number may be the first."""
        if not self.seq:
            return self._wrong_rollout()
        seq = self.seq + self.rng.randrange(2, 2**40)
        return self._case(Kind.ROLLOUT, seq, b"rows", body=(1, []), refused=("session", "window"))

    def _greet(self) -> Header:
        hello = pack_header(Header(Kind.HELLO, self.sender, body=(HELLOS[self.plane](),)))
        return self._answer(message([hello]), Kind.WELCOME)

    def _ask(self) -> None:
        self.seq = 1
        if self.plane is Plane.STEPS:
            self._answer(message(self._case(Kind.RESET, 1).frames), Kind.OBS)
        else:
            self._answer(message(self._case(Kind.INFER, 1, bytes(STEP_BYTES), body=(False,)).frames), Kind.ACT)

    def _answer(self, request: bytes, wanted: Kind) -> Header:
        """Ask until the answer comes."""
        self._ear.socket.settimeout(ASK_PERIOD_S)
        while time.monotonic() < self._deadline:
            self._mouth.send(request)
            with contextlib.suppress(TimeoutError, RemoteProtocolError):
                header = unpack_header(self._ear.receive()[0][TOPIC_BYTES:])
                if header.kind is wanted:
                    return header
        raise BeastError(f"the {self.plane.name.lower()} plane does not serve new clients any more")


def overheard(endpoint: Endpoint) -> list[bytes]:
    """The frames of a real version, from a real learner."""
    with RawPeer(endpoint, WEIGHTS, b"SUB") as peer:
        peer.send(message([b"\1" + TOPIC]))
        return peer.receive()


class Forger:
    """Publishes variations of a real version.

    Args:
      endpoint: to pretend to be the learner at; a path.
      real: frames of a real version.
      rng: decides.
    """

    def __init__(self, endpoint: Endpoint, real: list[bytes], rng: random.Random) -> None:
        self._rng = rng
        self._header: list[Any] = unpack(real[0][TOPIC_BYTES:])
        self._chunks = real[1:]
        family, place = address(endpoint, WEIGHTS)
        self._listener = socket.socket(family)
        self._listener.settimeout(LIMIT_S)
        self._listener.bind(place)
        self._listener.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.close()

    def subscriber(self) -> RawPeer:
        """The broker that has subscribed."""
        connection, _ = self._listener.accept()
        peer = RawPeer.accepted(connection, b"XPUB")
        peer.receive()
        return peer

    def genuine(self) -> Case:
        """What a broker has to take after all that."""
        return self._version(self._body(GENUINE), self._chunks, ())

    def case(self) -> Case:
        """A version that cannot be taken."""
        draw = self._rng.choice
        return draw([self._garbage, self._foreign, self._other_network, self._other_chunks, self._other_bytes])()

    def _garbage(self) -> Case:
        headers = [b"", b"\xc1", packed([]), packed([PROTOCOL_VERSION, 99, 0, 0, 0, 0]), b"\x91" * 70_000]
        return Case([TOPIC + self._rng.choice(headers), *self._chunks[: self._rng.randrange(2)]], ("header",))

    def _foreign(self) -> Case:
        if self._rng.random() < 0.5:
            return Case([TOPIC + packed([PROTOCOL_VERSION + 1, 12, 0]), *self._chunks], ("version",))
        kind, body = self._rng.choice([(Kind.ACK, (1, 1)), (Kind.OBS, ([],)), (Kind.BYE, ())])
        return Case([TOPIC + packed([PROTOCOL_VERSION, int(kind), 0, 0, 0, 0, *tuple(body)])], ("kind",))

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
        """It is not looked at if another version waits behind it; otherwise its checksum is wrong."""
        body = self._body(0)
        body[3] ^= 1 << self._rng.randrange(32)
        return self._version(body, self._chunks, None)

    def _body(self, version: int) -> list[Any]:
        return [version, *self._header[7:]]

    def _version(self, body: list[Any], chunks: list[bytes], refused: tuple[Refusal, ...] | None) -> Case:
        header = [PROTOCOL_VERSION, int(Kind.WEIGHTS), 0, 0, self._header[4], body[0], *body]
        return Case([TOPIC + packed(header), *chunks], refused)
