"""Sockets with every limit stated: the options, their reasons, and how they are waited for and read.

The choices are measured. Heartbeats cut a connection whose receiver is merely full, and can then end the whole process
(libzmq 4.3.5, issues 4364 and 4767), so TCP keepalive is used instead, and the application's own replies and credits
prove liveness. A connection that takes none of its server's replies for TCP_MAXRT is closed: a dead one with a full
queue would otherwise keep replies from its replacement for a quarter of an hour. A connect without CONNECT_TIMEOUT
hangs for two minutes on a vanished address. Exact doubling of RECONNECT_IVL has no jitter, so the base is random per
process.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import zmq
from numpy.typing import NDArray

from zerobeast.common.errors import LocalProtocolError
from zerobeast.common.transport.context import Context
from zerobeast.common.wire.messages import Header

MAX_FRAME_BYTES = 256 << 20  #: of one frame, checked by libzmq before it allocates
CURVE_BYTES = 64  #: the most that encryption adds to a frame

Payload = bytes | bytearray | memoryview | NDArray[Any]  #: contiguous memory, sent and received as it is

#: Subscriptions that may queue at an XPUB. With 1 and an admission handler, libzmq 4.3.5 loses a client's first.
SUBSCRIPTION_HWM = 64
SUBSCRIPTION_BYTES = 1024  #: per frame to an XPUB; CURVE's handshake needs 300, libzmq takes 50 per byte of a topic
#: sockets of one service, in the order in which `Endpoint.socket` numbers them
REQUESTS, REPLIES, WEIGHTS = 0, 1, 2

MAX_WAIT_S = 3600.0
RANDOM_BITS = 47  #: in the id of a client with an index: 16 of 63 are left for the index

CONNECT_MS = 3_000
HANDSHAKE_MS = 5_000
RETRY_MS = 1_000  #: between attempts to connect, at most
STUCK_MS = 10_000  #: how long a client may accept nothing that a server has for it


def random_id(index: int | None = None) -> int:
    """A random 63-bit id, never 0, for a client or for one start of a server.

    Args:
      index: of the client, if it has one, below 2^16: ids sort by index, and `index_of` recovers it.
    """
    if index is None:
        return secrets.randbits(63) | 1
    return index << RANDOM_BITS | secrets.randbits(RANDOM_BITS) | 1


def index_of(sender: int) -> int:
    """The index that an id was drawn with; a random number if there was none."""
    return sender >> RANDOM_BITS


class Poller:
    """Waits until one of several ports has something to read."""

    def __init__(self, ports: Iterable[Any] = (), files: Sequence[int] = ()) -> None:
        self._entries: list[Any] = [*files, *(socket for port in ports for socket in port.pollable)]
        self._poller = zmq.Poller()
        for entry in self._entries:
            self._poller.register(entry, zmq.POLLIN)

    @classmethod
    def union(cls, pollers: Iterable[Poller]) -> Self:
        """A poller that waits for everything that any of these waits for."""
        return cls(files=[entry for poller in pollers for entry in poller._entries])

    def wait(self, timeout_s: float) -> bool:
        """Return early as soon as anything can be read; without ports and files, sleep."""
        if not self._entries:  # zmq would return at once
            time.sleep(max(0.0, min(timeout_s, MAX_WAIT_S)))
            return False
        # rounded up: a wait of less than a millisecond would otherwise be 0, and its loop would spin
        return bool(self._poller.poll(max(0, math.ceil(min(timeout_s, MAX_WAIT_S) * 1000))))


def view_of(payload: Payload) -> memoryview:
    return memoryview(payload)  # type: ignore[arg-type]  # numpy declares its buffer for Python 3.12 on


def to_frame(payload: Payload) -> memoryview:
    """The payload as a frame. One larger than the receiver allows would cut the connection at every repetition."""
    view = view_of(payload)
    if view.nbytes > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {view.nbytes} bytes cannot travel, at most {MAX_FRAME_BYTES} can")
    return view


def make_socket(
    context: Context, kind: int, *, send_hwm: int = 1, receive_hwm: int = 1, linger_ms: int = 0
) -> zmq.Socket[bytes]:
    """A socket with all its limits; an XPUB receives nothing but subscriptions."""
    socket, sends_replies = context.socket(kind), kind == zmq.XPUB
    for option, value in (
        (zmq.SNDHWM, send_hwm),
        (zmq.RCVHWM, SUBSCRIPTION_HWM if sends_replies else receive_hwm),
        (zmq.LINGER, linger_ms),
        (zmq.IMMEDIATE, int(kind == zmq.PUSH)),  # no request queues for an absent server: the session repeats it
        (zmq.CONNECT_TIMEOUT, CONNECT_MS),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.RECONNECT_IVL, 100 + random.randrange(150)),  # noqa: S311 - jitter, not a secret
        (zmq.RECONNECT_IVL_MAX, RETRY_MS),
        (zmq.TCP_MAXRT, STUCK_MS if sends_replies else 0),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 30),
        (zmq.TCP_KEEPALIVE_INTVL, 10),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.MAXMSGSIZE, (SUBSCRIPTION_BYTES if sends_replies else MAX_FRAME_BYTES) + CURVE_BYTES),
        (zmq.BACKLOG, 1024),
    ):
        socket.set(option, value)
    return socket


MAX_SURPLUS = 1 << 15  #: frames dropped in one call: a message can have millions, and a service's loop must turn


@dataclass(slots=True)
class Incoming:
    """A message whose header has been read and whose further frames still wait in the socket."""

    header: Header
    _socket: zmq.Socket[bytes]

    def into(self, buffer: Payload, *, last: bool = True) -> bool:
        """Receive the next frame in place.

        Returns:
          Whether the frame exists, has exactly the buffer's size and is the last one if and only if `last` is set. If
          not, the buffer's content is undefined and the rest of the message is dropped.
        """
        if not self.more:
            return False
        view = view_of(buffer)
        wanted = view.nbytes
        size = self._socket.recv_into(view, flags=zmq.NOBLOCK)  # the true size, even if the frame was cut
        good = size == wanted and self.more != last
        if not good:
            self.discard()
        return good

    def to(self, slot: int) -> Incoming:
        """The same message, for another slot of its client."""
        return Incoming(replace(self.header, slot=slot), self._socket)

    def frames(self) -> list[bytes]:
        """All remaining frames, copied."""
        frames = []
        while self.more:
            frames.append(self._socket.recv(zmq.NOBLOCK))
        return frames

    @property
    def more(self) -> bool:
        """Whether another frame follows."""
        return bool(self._socket.get(zmq.RCVMORE))  # the attribute of that name takes three times as long

    def discard(self) -> bool:
        """Drop the frames not read yet; False if they are so many that another call has to go on."""
        more = self.more
        for _ in range(MAX_SURPLUS):
            if not more:
                return True
            more = self._socket.recv(zmq.NOBLOCK, copy=False).more
        return not more
