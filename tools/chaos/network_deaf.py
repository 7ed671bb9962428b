"""Clients that open a session, ask on and on, and never read an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.messages import Frames, Header, Kind, Plane
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.common.wire.stream import Stream

ENVS = 256  #: large replies, so that there is soon no room for them
RESETS = 100  #: the first may be lost, and RESET has to come before the first STEP
BURST = 20  #: of small requests

#: what the next request of an open session is; its number is that of the stream
Ask = Callable[[Stream], tuple[Header, Frames]]


class Deaf:
    """One of them.

    Args:
      context: of this process.
      plane: that it uses.
      endpoint: of the server.
      terms: of its HELLO.
      ask: what it sends.
      at_once: how often in a row.
    """

    def __init__(
        self, context: Context, plane: Plane, endpoint: str, terms: dict[str, Any], ask: Ask, at_once: int = 1
    ) -> None:
        self._port = ClientPort(context, plane, endpoint, random_id())
        self.stream = Stream(self._port.sender, 0, terms, f"server at {endpoint}")
        self._ask, self._at_once = ask, at_once

    def open(self) -> bool:
        """Greet and listen; whether the session is open."""
        now = time.monotonic()
        if work := self.stream.due(now):
            self._port.send(work[0])
        while message := self._port.receive():
            self.stream.accept(message.header, now)
        return self.stream.open

    def ask(self) -> None:
        """Send requests, as many as find room, and read nothing."""
        for _ in range(self._at_once):
            self.stream.seq += 1
            header, frames = self._ask(self.stream)
            self._port.send(header, *frames)

    def close(self) -> None:
        """Close the sockets."""
        self._port.close()


def on_steps(context: Context, endpoint: str, env: dict[str, Any]) -> Deaf:
    """Steps environments."""

    def ask(stream: Stream) -> tuple[Header, Frames]:
        if stream.seq <= RESETS:
            return _request(Kind.RESET, stream), ()
        action = EnvSpec.from_wire(stream.terms["env"]).action
        return _request(Kind.STEP, stream), (np.zeros(ENVS, action_record(action).dtype),)

    return Deaf(context, Plane.STEPS, endpoint, {"env": env, "num_envs": ENVS, "seed": 1}, ask)


def on_inference(context: Context, endpoint: str, env: EnvSpec) -> Deaf:
    """Asks for actions."""
    rows = np.zeros(ENVS, step_record(env).dtype)
    terms = {"env": env.to_wire(), "num_envs": ENVS}
    return Deaf(
        context, Plane.INFERENCE, endpoint, terms, lambda stream: (_request(Kind.INFER, stream, body=(False,)), (rows,))
    )


def on_rollouts(context: Context, endpoint: str, env: EnvSpec, unroll_length: int) -> Deaf:
    """Says HELLO, again and again."""
    terms = {"env": env.to_wire(), "unroll_length": unroll_length, "num_envs": 1}

    def ask(stream: Stream) -> tuple[Header, Frames]:
        return Header(Kind.HELLO, stream.sender, stream.slot, body=(terms,)), ()

    return Deaf(context, Plane.ROLLOUTS, endpoint, terms, ask, BURST)


def _request(kind: Kind, stream: Stream, body: tuple[Any, ...] = ()) -> Header:
    return Header(kind, stream.sender, stream.slot, stream.epoch, stream.seq, body)
