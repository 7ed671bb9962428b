"""Messages that no honest peer sends, drawn from a seed, with the reason that each has to be counted under.

cases = Cases(random.Random(1), Plane.STEPS, canary)
case = cases.stranger()          # from a peer without a session
case.frames, case.refused        # refused: the possible counters; () if it is ignored, None if unknown
"""

import random
import struct
from typing import Any, NamedTuple

import msgpack

from zerobeast.common.errors import Refusal
from zerobeast.common.wire.messages import BODIES, MAX_HEADER_BYTES, MAX_INTEGER, PROTOCOL_VERSION, Kind, Plane
from zerobeast_tools.chaos.fuzz_hello import HELLOS, bad_terms

#: what sessions request on each plane; HELLO and BYE are accepted everywhere, other kinds nowhere
REQUESTS_BY_PLANE = {
    Plane.STEPS: (Kind.STEP, Kind.RESET),
    Plane.INFERENCE: (Kind.INFER,),
    Plane.ROLLOUTS: (Kind.ROLLOUT,),
}
_EXAMPLES: dict[Any, Any] = {dict: {}, str: "no", list: [], bool: False, int: 1}
_EXAMPLES |= {int | None: 1, int | list | None: 1, dict | None: {}, list | None: None, float | None: 0.5}
BODY = {kind: tuple(_EXAMPLES[entry] for entry in entries) for kind, entries in BODIES.items()}


class Case(NamedTuple):
    """One message."""

    frames: list[bytes]
    refused: tuple[Refusal, ...] | None


class Cases:
    """Draws messages for one plane.

    Args:
      rng: makes all choices.
      plane: whose server the messages are for.
      canary: a file that exists once anything was unpickled.
    """

    def __init__(self, rng: random.Random, plane: Plane, canary: str) -> None:
        self.rng = rng
        self.plane = plane
        self._taken = (Kind.HELLO, Kind.BYE, *REQUESTS_BY_PLANE[plane])
        self._pickle = f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()
        self._classes = (
            self._noise,
            self._broken_header,
            self._torn_header,
            self._huge,
            self._forged_array,
            self._other_version,
            self._foreign_kind,
            self._unknown_session,
            self._bad_hello,
            self._surplus,
            self._without_subscription,
        )

    def stranger(self) -> Case:
        """A message from a peer without a session, with a known outcome."""
        return self.rng.choice(self._classes)()

    def mutant(self) -> Case:
        """A valid message with mutations."""
        rng = self.rng
        good = [self._header(rng.choice(self._taken)), *[rng.randbytes(rng.randrange(200))] * rng.randrange(2)]
        return Case(mutate_frames(rng, good), None)

    def _header(self, kind: Kind, *terms: Any, version: int = PROTOCOL_VERSION) -> bytes:
        """A header with random ids, which the server does not have."""
        ids = [self._id(), self.rng.randrange(4), self._id(), self.rng.randrange(1, 100)]
        good = (HELLOS[self.plane],) if kind is Kind.HELLO else BODY[kind]
        return pack_anything([version, kind, *ids, *(terms or good)])

    def _id(self) -> int:
        return self.rng.randrange(1, MAX_INTEGER)

    def _noise(self) -> Case:
        """Nothing at all, or bytes that begin as msgpack never does."""
        rng = self.rng
        first = rng.choice([b"", b"\xc1" + rng.randbytes(rng.randrange(300))])
        return Case([first, *(rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(3)))], ("header",))

    def _broken_header(self) -> Case:
        """msgpack, but no header."""
        rng, kind, some = self.rng, REQUESTS_BY_PLANE[self.plane][0], self._id()
        entries = rng.choice(
            [
                [],
                [PROTOCOL_VERSION, kind],
                [PROTOCOL_VERSION, kind, -some, 0, 1, 1],
                [PROTOCOL_VERSION, kind, 2**63 + rng.randrange(2**63), 0, 1, 1],
                [PROTOCOL_VERSION, kind, some, 0, 1.5, 1],
                [PROTOCOL_VERSION, kind, some, "0", 1, 1],
                [PROTOCOL_VERSION, kind, some, 0, 1],
                [PROTOCOL_VERSION, kind, some, 0, 1, 1, *[None] * rng.randrange(4, 50)],
                [PROTOCOL_VERSION, rng.choice([0, 99, MAX_INTEGER]), some, 0, 1, 1],
                [True, kind, some, 0, 1, 1],
                {"version": PROTOCOL_VERSION},
                rng.randbytes(40).hex(),
                None,
            ]
        )
        return Case([pack_anything(entries)], ("header",))

    def _torn_header(self) -> Case:
        """A good header, cut short or with something behind it."""
        good = self._header(self.rng.choice(self._taken))
        if self.rng.random() < 0.5:
            return Case([good[: self.rng.randrange(len(good))]], ("header",))
        return Case([good + self.rng.randbytes(self.rng.randrange(1, 20))], ("header",))

    def _huge(self) -> Case:
        """Announced lengths that do not follow, deep nesting, or more bytes than a header may have."""
        rng = self.rng
        announced = rng.choice([b"\xdb", b"\xdd", b"\xdf", b"\xc6", b"\xc9"]) + struct.pack(">I", 2**31)
        forged = rng.choice(
            [
                announced + rng.randbytes(rng.randrange(40)),
                b"\x91" * rng.choice([40, 1000, MAX_HEADER_BYTES]),
                b"\x81\xa1k" * rng.choice([40, 1000, 20_000]),
                self._header(Kind.HELLO, nest_maps(rng.choice([31, 100, 400]))),
                self._header(Kind.HELLO, {"x": msgpack.ExtType(5, b"x")}),
                self._header(Kind.HELLO, {"t": msgpack.Timestamp(1)}),
                bytes(MAX_HEADER_BYTES + 1 + rng.randrange(1000)),
            ]
        )
        return Case([forged], ("header",))

    def _forged_array(self) -> Case:
        """An array as msgpack-numpy writes it that is a pickle, a pointer, or larger than its bytes."""
        rng = self.rng
        array = rng.choice(
            [
                {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": self._pickle},
                {b"nd": True, b"type": "|O", b"kind": b"", b"shape": [1], b"data": self._pickle},
                {b"nd": False, b"type": "|O8", b"data": self._pickle},
                {b"nd": True, b"type": [["f0", "<i8"]], b"kind": b"V", b"shape": [1], b"data": bytes(8)},
                {b"nd": True, b"type": "|u1", b"kind": b"", b"shape": [2**40], b"data": b"x"},
                {b"nd": True, b"type": "|u1", b"kind": b"", b"shape": [-1], b"data": b"x"},
                {b"nd": True, b"type": "|u1", b"kind": b"", b"shape": [1] * 9, b"data": b"x"},
                {b"nd": True, b"type": "<f8", b"kind": b"", b"shape": [1], b"data": rng.randbytes(7)},
                {"nd": True, "type": "<U1000000", "kind": "", "shape": [2**60], "data": b""},
            ]
        )
        return Case([self._header(Kind.HELLO, {"env": array, "num_envs": 1, "seed": 1})], ("array",))

    def _other_version(self) -> Case:
        """A header of another version."""
        version = self.rng.choice([0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, 77, MAX_INTEGER])
        unread = pack_anything([version, self._id(), self._id(), *[[]] * self.rng.randrange(5)])
        alike = self._header(self.rng.choice(self._taken), version=version)
        return Case([self.rng.choice([unread, alike])], ("version",))

    def _foreign_kind(self) -> Case:
        kind = self.rng.choice([kind for kind in Kind if kind not in self._taken])
        return Case([self._header(kind), *[b"payload"] * self.rng.randrange(2)], ("kind", "payload"))

    def _unknown_session(self) -> Case:
        return Case([self._header(REQUESTS_BY_PLANE[self.plane][0]), self.rng.randbytes(64)], ("session",))

    def _bad_hello(self) -> Case:
        terms, refused = bad_terms(self.rng, self.plane)
        return Case([self._header(Kind.HELLO, terms)], (refused,))

    def _surplus(self) -> Case:
        kind = self.rng.choice([Kind.HELLO, Kind.BYE])
        return Case([self._header(kind), *[b""] * self.rng.randrange(1, 200)], ("payload",))

    def _without_subscription(self) -> Case:
        """A valid HELLO of a client that is not subscribed to the answer, or BYE of an unknown client."""
        return Case([self._header(self.rng.choice([Kind.HELLO, Kind.BYE]))], ())


def pack_anything(entries: Any) -> bytes:
    """msgpack of anything, including what `zerobeast.common.wire.messages` would not send."""
    encoded: bytes = msgpack.packb(entries, use_bin_type=True)
    return encoded


def nest_maps(depth: int) -> Any:
    """Maps nested `depth` levels deep."""
    value: Any = {}
    for _ in range(depth):
        value = {"x": value}
    return value


def mutate_frames(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """A few accidents of the wire: bits flip; frames are cut, extended, lost, repeated, or change places."""
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(frames))
        frame = frames[place]
        flipped = bytearray(frame or b"\0")
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        instead: list[bytes] = rng.choice(
            [
                [bytes(flipped)],
                [frame[: rng.randrange(len(frame) + 1)]],
                [frame + rng.randbytes(rng.randrange(1, 100))],
                [],
                [frame] * rng.randrange(2, 6),
            ]
        )
        frames = [*frames[:place], *instead, *frames[place + 1 :]] or [b""]
        if rng.random() < 0.2:
            rng.shuffle(frames)
    return frames
