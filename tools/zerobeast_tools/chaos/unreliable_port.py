"""A server's port whose messages are late, lost or malformed now and then; used by `beast chaos search`."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.transport import Incoming, ServerPort
from zerobeast.common.wire.messages import Header, Kind

BURST_S = 2.0  #: duration of a burst of faults
#: replies that a client requests again; WELCOME and HERE have to get through, or nothing else is tested
SPOILABLE_KINDS = frozenset({Kind.OBS, Kind.ACT, Kind.ACK})


@dataclass(frozen=True)
class Faults:
    """How often each fault hits a message: probabilities from 0 to 1."""

    late: float = 0.0
    late_s: float = 0.0  #: by how much
    lost: float = 0.0
    malformed: float = 0.0
    burst: bool = False  #: faults come in bursts of BURST_S, with pauses of the same length


class UnreliablePort:
    """Stands in for a `ServerPort`, and passes on everything that no fault hits.

    Args:
      port: the real one.
      faults: of replies; `malformed` also spoils the values of received rollouts.
      seed: of the draws.
    """

    def __init__(self, port: ServerPort, faults: Faults, seed: int) -> None:
        self._port, self._faults = port, faults
        self._random = random.Random(seed)  # noqa: S311, repeatable faults need no secrecy
        self._late: deque[tuple[float, Header, Sequence[bytes]]] = deque()

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of the port."""
        return getattr(self._port, name)

    def receive(self) -> Incoming | SpoiledRollout | None:
        """The next request; late replies that are due are sent first."""
        while self._late and self._late[0][0] <= time.monotonic():
            _, header, frames = self._late.popleft()
            self._port.send(header, *frames)
        message = self._port.receive()
        if message is not None and message.header.kind is Kind.ROLLOUT and self._hits(self._faults.malformed):
            return SpoiledRollout(message)
        return message

    def send(self, header: Header, *frames: Any) -> bool:
        """Reply, late or malformed or not at all."""
        if header.kind not in SPOILABLE_KINDS or self._hits(self._faults.lost):
            return header.kind in SPOILABLE_KINDS or self._port.send(header, *frames)
        copies = [np.ascontiguousarray(frame).tobytes() for frame in frames]
        if copies and self._hits(self._faults.malformed):
            size = len(copies[0])  # half of it, or NaN floats and booleans that are neither 0 nor 1
            copies[0] = self._random.choice([copies[0][: size // 2], b"\xff" * size])
        if self._hits(self._faults.late):
            self._late.append((time.monotonic() + self._faults.late_s, header, copies))
            return True
        return self._port.send(header, *copies)

    def _hits(self, chance: float) -> bool:
        quiet = self._faults.burst and int(time.monotonic() / BURST_S) % 2 == 0
        return not quiet and self._random.random() < chance


class SpoiledRollout:
    """A ROLLOUT with all bits of its rows set."""

    def __init__(self, message: Incoming) -> None:
        self.header = message.header
        self._message = message

    def into(self, buffer: NDArray[Any]) -> bool:
        """Receive it, then spoil it: a float with all bits set is NaN."""
        whole = self._message.into(buffer)
        buffer.view(np.uint8)[...] = 0xFF
        return whole
