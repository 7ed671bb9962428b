"""A client that a server accepts, and that then sends what no honest client does, or never reads."""

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import BeastError, Refusal, RemoteProtocolError
from zerobeast.common.wire import PolicySpec, action_record, rollout_record, step_record
from zerobeast.common.wire.messages import (
    MAX_EPISODES,
    MAX_OPTIONS_BYTES,
    PROTOCOL_VERSION,
    TOPIC_BYTES,
    Header,
    Kind,
    Plane,
    pack_header,
    topic,
    unpack_header,
)
from zerobeast.testing.raw_peer import LIMIT_S, REPLIES, REQUESTS, RawPeer
from zerobeast_tools.chaos.fuzz_hello import CARTPOLE, HELLOS, UNROLL_LENGTH
from zerobeast_tools.chaos.fuzz_messages import BODY, REQUESTS_BY_PLANE, Case, nest_maps, pack_anything

ASK_PERIOD_S = 0.5
ACTION_BYTES = action_record(CARTPOLE.action).row_bytes
STEP_BYTES = step_record(CARTPOLE).row_bytes
BAD_RESETS: list[tuple[tuple[Any, ...], Refusal]] = [
    ((2**31,), "terms"),
    ((2**63 - 1, {}), "terms"),
    ((None, {"x": bytes(MAX_OPTIONS_BYTES)}), "terms"),
    ((-1,), "header"),
    ((1.5, {}), "header"),
    ((True, None), "header"),
    ((None, [{}]), "header"),
    ((1, {}, None, "0.5"), "header"),
    ((1, {}, None, None, None), "header"),
    ((None, None, None, 1.5), "terms"),
    ((None, None, []), "terms"),
    ((None, None, [1] * 5000), "terms"),
    ((None, None, {}), "header"),
    ((1, nest_maps(100)), "header"),
    ((1, {"nd": 1}), "array"),
]


class Visitor(contextlib.AbstractContextManager["Visitor"]):
    """One session on one plane, opened as an honest client would.

    Args:
      endpoint: of the server.
      plane: that the server serves.
      rng: draws its id and what it sends.
      num_envs: of its session.
      asks: whether to make one valid request first, as every session in use does.

    Raises:
      BeastError: the server does not accept it.
    """

    def __init__(
        self, endpoint: Endpoint, plane: Plane, rng: random.Random, *, num_envs: int = 1, asks: bool = True
    ) -> None:
        self.plane, self.rng = plane, rng
        self.sender = rng.randrange(1, 2**63)
        self.seq = 0
        self._num_envs = num_envs
        self._hello = [pack_header(Header(Kind.HELLO, self.sender, body=(HELLOS[plane] | {"num_envs": num_envs},)))]
        self._ear = RawPeer(endpoint, REPLIES, b"SUB")
        self._mouth = RawPeer(endpoint, REQUESTS, b"PUSH")
        self._ear.say([b"\1" + topic(plane, self.sender)])
        self.welcome = self._answer(self._hello, Kind.WELCOME)
        if asks and plane is Plane.STEPS:
            self._answer(self._request(Kind.RESET), Kind.OBS)
        elif asks and plane is Plane.INFERENCE:
            self._answer(self._request(Kind.INFER), Kind.ACT)

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(OSError):  # the server may have hung up
            self._mouth.say(self._case(Kind.BYE, 0).frames)
        self._ear.close()
        self._mouth.close()

    def say(self, *cases: Case) -> None:
        """Send cases; the server's answers are never read."""
        self._mouth.say(*(case.frames for case in cases))

    def ask(self) -> None:
        """Send the next valid request, or HELLO again on the rollouts plane, and never read the answer."""
        self._mouth.say(
            self._hello if self.plane is Plane.ROLLOUTS else self._request(REQUESTS_BY_PLANE[self.plane][0])
        )

    def case(self) -> Case:
        """A well-addressed request that is wrong, late or repeated; it may or may not use up its number."""
        wrong: dict[Plane, list[Callable[[], Case]]] = {
            Plane.STEPS: [self._wrong_step, self._wrong_reset],
            Plane.INFERENCE: [self._wrong_infer],
            Plane.ROLLOUTS: [self._wrong_rollout, self._early_rollout],
        }
        return self.rng.choice([self._foreign_epoch, self._replay, *wrong[self.plane]])()

    def _case(self, kind: Kind, seq: int, *frames: bytes, body: tuple[Any, ...] = (), refused: Any = ()) -> Case:
        header = Header(kind, self.sender, 0, self.welcome.epoch, seq, body)
        return Case([pack_header(header), *frames], refused)

    def _request(self, kind: Kind) -> list[bytes]:
        """The next request, as an honest client sends it."""
        self.seq += 1
        rows = {Kind.RESET: [], Kind.STEP: [bytes(ACTION_BYTES * self._num_envs)]}
        return self._case(kind, self.seq, *rows.get(kind, [bytes(STEP_BYTES * self._num_envs)]), body=BODY[kind]).frames

    def _foreign_epoch(self) -> Case:
        """A request addressed to another start of the server."""
        kind = REQUESTS_BY_PLANE[self.plane][0]
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

    def _wrong_reset(self) -> Case:
        """A RESET with impossible arguments."""
        body, refused = self.rng.choice(BAD_RESETS)
        header = [PROTOCOL_VERSION, Kind.RESET, self.sender, 0, self.welcome.epoch, self.seq + 1, *body]
        return Case([pack_anything(header)], (refused,))

    def _replay(self) -> Case:
        """A request with the number of an accepted request, or of none: it is answered again or ignored."""
        kind = self.rng.choice(REQUESTS_BY_PLANE[self.plane])
        return self._case(kind, self.rng.randrange(min(1, self.seq) + 1), body=BODY[kind])

    def _wrong_infer(self) -> Case:
        size = self.rng.choice([0, 1, STEP_BYTES - 1, STEP_BYTES + 1, 2 * STEP_BYTES, 100_000])
        frames = [self.rng.randbytes(size), *[b"more"] * self.rng.randrange(2)]
        return self._case(Kind.INFER, self.seq + 1, *frames, body=(True,), refused=("payload",))

    def _wrong_rollout(self) -> Case:
        """A rollout that cannot be trained on. It uses up its number, unless too many such are waiting already."""
        rng, self.seq = self.rng, self.seq + 1
        policy = PolicySpec.from_wire(self.welcome.body[0]["policy"])
        rows = np.zeros(1, rollout_record(CARTPOLE, policy, UNROLL_LENGTH).dtype)
        name, value = rng.choice(
            [
                ("obs", np.nan),
                ("reward", np.inf),
                ("logits", -np.inf),
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
        body = [n_rows, episodes, rng.choice([0, 1, rng.randrange(2**63)])]
        header = pack_anything([PROTOCOL_VERSION, Kind.ROLLOUT, self.sender, 0, self.welcome.epoch, self.seq, *body])
        return Case([header, payload], ("values", "payload", "episodes", "window", "session"))

    def _early_rollout(self) -> Case:
        """A rollout that overtakes another. Before there is one, any number may be the first."""
        if not self.seq:
            return self._wrong_rollout()
        seq = self.seq + self.rng.randrange(2, 2**40)
        return self._case(Kind.ROLLOUT, seq, b"rows", body=(1, [], 0), refused=("session", "window"))

    def _answer(self, request: list[bytes], wanted: Kind) -> Header:
        """Send the request again and again until the wanted answer comes."""
        self._ear.socket.settimeout(ASK_PERIOD_S)
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self._mouth.say(request)
            with contextlib.suppress(TimeoutError, RemoteProtocolError):
                header = unpack_header(self._ear.receive()[0][TOPIC_BYTES:])
                if header.kind is wanted:
                    return header
        raise BeastError(f"the {self.plane.name.lower()} plane does not serve new clients any more")
