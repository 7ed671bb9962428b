"""The weights plane: one version is one message of chunks, and a late subscriber gets the newest at once.

A second topic carries news of the versions, for clients that take only some of them: these subscribe to the weights
only while they wait for a version.
"""

import contextlib
import logging
import os
import socket
import stat
import sys
import time
import weakref
from collections.abc import Iterator
from socket import SHUT_RDWR
from typing import Any

import numpy as np
import zmq

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport.context import Context
from zerobeast.common.transport.ports import Port
from zerobeast.common.transport.sockets import WEIGHTS, Incoming, Payload, make_socket, view_of
from zerobeast.common.wire.messages import Header, Plane, pack_header, topic

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20  #: of weights: a larger frame can starve liveness checks on a slow link
WEIGHTS_TOPIC, NEWS_TOPIC = topic(Plane.WEIGHTS, 0), topic(Plane.WEIGHTS, 1)
NO_TOPIC, SUBSCRIBE_BYTE = b"\0", b"\1"
MAX_SUBSCRIBERS = 1024  #: more are not served until others leave
COUNT_PERIOD_S = 1.0
#: bytes of older versions that wait for slow subscribers, at least MIN_HELD versions: subscribers share a version, but
#: each can hold others
MAX_HELD_BYTES, MIN_HELD = 256 << 20, 8
CUT_PERIOD_S = 30.0  #: between disconnections: in that time a slow link can carry a version to its end
MAX_ARRIVALS = 64  #: subscriptions served in one call: a flood must not keep a learner from its loop


class WeightsPublisher:
    """Broadcasts versions of the weights, and news of them, on the third socket of the learner's endpoint.

    Raises:
      ConfigError: the endpoint cannot be bound.
    """

    def __init__(self, context: Context, endpoint: str) -> None:
        self._socket = make_socket(context, zmq.XPUB, send_hwm=2)
        self._socket.set(zmq.XPUB_MANUAL_LAST_VALUE, 1)
        self.pollable = [self._socket]  #: what `Poller` waits on
        self._newest: dict[bytes, list[Any]] = {}  #: newest message by topic
        self.held: list[tuple[weakref.ref[memoryview], int]] = []  #: a chunk and the size of versions not yet released
        self._admitted = 0  #: subscriptions granted since connections were last counted, and those there were
        self._counted_at = self._cut_at = float("-inf")
        self.due = False  #: whether the newest version waits until subscribers hold less
        context.bind(Plane.WEIGHTS, Endpoint.parse(endpoint), {WEIGHTS: self._socket})

    def publish(self, header: Header, snapshot: Payload) -> None:
        """Send one version to every subscriber. `snapshot` must never change afterwards."""
        frames = chunks(snapshot)
        self.due = False
        self.welcome()
        self._newest[WEIGHTS_TOPIC] = [WEIGHTS_TOPIC + pack_header(header), *frames]
        if frames:  # the last may be so short that libzmq copies it
            self.held.append((weakref.ref(max(frames[-2:], key=len)), view_of(snapshot).nbytes))
        self._broadcast()

    def tell(self, news: Header) -> None:
        """Send NEWS to its subscribers."""
        self.welcome()
        self._newest[NEWS_TOPIC] = [NEWS_TOPIC + pack_header(news)]
        self._socket.send_multipart(self._newest[NEWS_TOPIC], zmq.NOBLOCK, copy=False)

    def welcome(self) -> None:
        """Send the newest message of their topic to clients that subscribed since the last call, and what is due."""
        for _ in range(MAX_ARRIVALS):
            try:
                event = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            asked = NEWS_TOPIC if event == SUBSCRIBE_BYTE + NEWS_TOPIC else WEIGHTS_TOPIC
            # This applies to the client behind the event, whatever the event is: if it is not a subscription, libzmq
            # 4.3.5 picks a client whose own event is still to come. One that gets no news for that subscribes again.
            admitted = event[:1] != SUBSCRIBE_BYTE or self._admits()
            if admitted:
                self._socket.set(zmq.SUBSCRIBE, asked)
            # The next send goes to that client alone. If there is nothing for it, a message that no client subscribes
            # to is sent instead; otherwise the next version would reach no other subscriber.
            parts = self._newest.get(asked, [NO_TOPIC]) if admitted and event == SUBSCRIBE_BYTE + asked else [NO_TOPIC]
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        if self.due:
            self._broadcast()

    def _admits(self) -> bool:
        """Whether there is room for a subscription. Its end cannot be trusted to be reported, so they are counted."""
        if self._admitted >= MAX_SUBSCRIBERS and time.monotonic() - self._counted_at > COUNT_PERIOD_S:
            self._counted_at = time.monotonic()
            self._admitted = sum(1 for _ in connections(self._socket)) - 1
        if self._admitted >= MAX_SUBSCRIBERS:
            log.warning("%d processes have subscribed to the weights already: another gets none", self._admitted)
            return False
        self._admitted += 1
        return True

    def _broadcast(self) -> None:
        """Send the newest version to all subscribers, unless they hold too much and were cut off a moment ago."""
        self.held = [(chunk, size) for chunk, size in self.held if chunk() is not None]
        held, n_bytes = sum(size for _, size in self.held), self.held[-1][1] if self.held else 0
        full = held - n_bytes > max(MAX_HELD_BYTES, MIN_HELD * n_bytes)
        self.due = full and time.monotonic() - self._cut_at < CUT_PERIOD_S
        if full and not self.due:
            self._cut_off(held)
        if not self.due:
            self._socket.send_multipart(self._newest[WEIGHTS_TOPIC], zmq.NOBLOCK, copy=False)

    def _cut_off(self, held: int) -> None:
        """Disconnect the subscribers that are behind; each finds the newest version when it returns."""
        self._cut_at = time.monotonic()
        log.warning("%d MB of weights wait for subscribers: those that are behind are disconnected", held >> 20)
        for connection in connections(self._socket):
            with contextlib.suppress(OSError):
                if count_unsent_bytes(connection):
                    connection.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, letting the last version leave."""
        self._socket.close(linger=500)


class WeightsSubscriber(Port):
    """Receives versions of the weights, or the news of them; without an `endpoint` only once `open` names one."""

    def __init__(self, context: Context, endpoint: str = "", about: bytes = WEIGHTS_TOPIC) -> None:
        super().__init__()
        self._context, self._about = context, about
        if endpoint:
            self.open(Endpoint.parse(endpoint).resolve())

    def open(self, place: Endpoint) -> None:
        """Subscribe at an address."""
        self._socket = make_socket(self._context, zmq.SUB, receive_hwm=2)
        self.pollable, self._last = [self._socket], None
        self._socket.set(zmq.SUBSCRIBE, self._about)
        self._context.connect(self._socket, Plane.WEIGHTS, place, WEIGHTS)

    def receive(self) -> Incoming | None:
        """The next well-formed version, or None. Raises VersionMismatch like `ClientPort.receive`."""
        return self._next(self._socket, len(WEIGHTS_TOPIC)) if self.pollable else None

    def close(self) -> bool:
        """End the subscription; returns whether there was one."""
        open_, self.pollable = bool(self.pollable), []
        if open_:
            self._socket.close(linger=0)
        return open_


def chunks(snapshot: Payload) -> list[memoryview]:
    """The bytes of a snapshot in frames of at most CHUNK_BYTES, not copied."""
    view = view_of(snapshot).cast("B")
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]


def checksum(snapshot: Payload) -> int:
    """The sum of a snapshot's 32-bit words, modulo 2^32: an order of magnitude faster than a CRC of as many bytes."""
    return int(np.frombuffer(snapshot, "<u4").sum(dtype=np.uint32))


def connections(bound: zmq.Socket[bytes]) -> Iterator[socket.socket]:
    """Each connection that a bound tcp or ipc socket has at present, as a duplicate that is closed afterwards.

    They are found among the files of this process: libzmq lists none.
    """
    place = str(bound.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
    try:
        files = os.listdir("/proc/self/fd")
    except OSError:  # no file is left to read them with
        return
    for name in files:
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()
                here = connection.getsockname()
                if place == f"ipc://{here}" or (isinstance(here, tuple) and place.endswith(f":{here[1]}")):
                    yield connection
        except OSError:  # one that listens, or closed meanwhile
            continue


def count_unsent_bytes(connection: socket.socket) -> int:
    """Bytes that the kernel holds because the peer has not taken them."""
    import fcntl  # which Windows lacks, on which clients run
    import termios

    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
