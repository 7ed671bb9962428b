"""The only module that imports zmq. Every socket states its limits here, at birth.

A plane has a server that binds a PULL and an XPUB, and clients that connect a PUSH and a SUB:

    server = ServerPort(context, Plane.INFERENCE, "tcp://*:5555")
    client = ClientPort(context, Plane.INFERENCE, "tcp://broker:5555", sender=random_id())
    client.send(Header(Kind.HELLO, client.sender, body=({},)))
    while message := server.receive():       # None when nothing more is there
        if message.into(rows[i : i + n]):     # the payload, received in place; False if its size is wrong
            server.send(Header(...), reply)

The choices behind the options, all of them measured: PULL + XPUB equals ROUTER in speed and a subscription doubles
as a lease on the client; heartbeats cut a connection whose receiver is merely full, so TCP keepalive is used instead
and the application's own replies and credits prove liveness; a connect without CONNECT_TIMEOUT hangs for two minutes
on a vanished address; exact doubling of RECONNECT_IVL has no jitter, so the base is random per process.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import zmq
from numpy.typing import NDArray

from common.endpoints import Endpoint
from common.errors import ConfigError, LocalProtocolError, RemoteProtocolError, VersionMismatch
from common.messages import (
    TOPIC_BYTES,
    Header,
    Kind,
    Plane,
    Reason,
    pack_header,
    sender_of,
    topic,
    unpack_header,
)

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 256 << 20  #: of one frame, checked by libzmq before it allocates
CHUNK_BYTES = 1 << 20  #: of weights: a larger frame can starve liveness checks on a slow link

Context = zmq.Context[zmq.Socket[bytes]]
Payload = bytes | bytearray | memoryview | NDArray[Any]  #: contiguous memory, sent and received as it lies

#: sockets of one service, in the order in which `Endpoint.socket` numbers them
REQUESTS, REPLIES, WEIGHTS = 0, 1, 2

MAX_WAIT_S = 3600.0


def random_id() -> int:
    """A random 63-bit id, never 0: of a client, or of one start of a server."""
    return secrets.randbits(63) | 1


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context; create it after the process has started and never share it with a fork."""
    return zmq.Context()


class Incoming:
    """A message whose header has been read and whose further frames still wait in the socket."""

    __slots__ = ("_socket", "header")

    def __init__(self, header: Header, socket: zmq.Socket[bytes]) -> None:
        self.header = header
        self._socket = socket

    def into(self, buffer: Payload, *, last: bool = True) -> bool:
        """Receive the next frame in place.

        Returns:
          Whether it exists, has exactly the buffer's size and is, if so asked, the last. Where not, the buffer's
          content is undefined and the rest of the message is dropped.
        """
        if not self.more:
            return False
        view = _view(buffer)
        wanted = view.nbytes
        size = self._socket.recv_into(view, flags=zmq.NOBLOCK)  # the true size, also where it was cut
        good = size == wanted and self.more != last
        if not good:
            self.discard()
        return good

    def frames(self) -> list[bytes]:
        """All remaining frames, copied; for the control plane."""
        frames = []
        while self.more:
            frames.append(self._socket.recv(zmq.NOBLOCK))
        return frames

    @property
    def more(self) -> bool:
        """Whether another frame follows."""
        return bool(self._socket.get(zmq.RCVMORE))  # the attribute of that name takes three times as long

    def discard(self) -> None:
        """Drop what was not read."""
        while self.more:
            self._socket.recv(zmq.NOBLOCK, copy=False)


_UNREAD = Header(Kind.BYE, 0)


class _Port:
    """What both ends share: reading headers, counting refusals."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()  #: bad messages by reason
        self.bytes_in = 0
        self._last: Incoming | None = None

    def _read(self, socket: zmq.Socket[bytes], skip: int) -> Header | None:
        """The next header, or None where nothing waits. Raises RemoteProtocolError on a bad one."""
        if self._last is not None:
            self._last.discard()
            self._last = None
        try:
            frame = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._last = Incoming(_UNREAD, socket)
        return unpack_header(memoryview(frame)[skip:])

    def _message(self, header: Header, socket: zmq.Socket[bytes]) -> Incoming:
        self._last = Incoming(header, socket)
        return self._last

    def refuse(self, error: RemoteProtocolError) -> None:
        """Count a bad message; the first of each kind is logged."""
        if not self.refused[error.reason]:
            log.warning("refused a message: %s", error)
        self.refused[error.reason] += 1


class ServerPort(_Port):
    """The binding end of a plane: requests in on a PULL, replies out on an XPUB.

    Args:
      context: of this process.
      plane: whose letter opens the topics.
      endpoint: "tcp://*:5555" or "ipc:///path"; two sockets are bound from there on.
      receive_hwm: requests that may wait in this process, per client.

    Raises:
      ConfigError: the endpoint cannot be bound.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], plane: Plane, endpoint: str, *, receive_hwm: int = 64
    ) -> None:
        super().__init__()
        self.plane = plane
        self.dropped = 0  #: replies that a stuck client did not take
        place = Endpoint.parse(endpoint)
        self._requests = _socket(context, zmq.PULL, receive_hwm=receive_hwm)
        self._replies = _socket(context, zmq.XPUB, send_hwm=256)
        self._replies.set(zmq.XPUB_NODROP, 1)
        try:
            _bind(self._requests, place, REQUESTS)
            _bind(self._replies, place, REPLIES)
        except ConfigError:
            self.close()
            raise

    @property
    def pollable(self) -> list[Any]:
        """What `Poller` waits on: requests, and arrivals of clients until `departures` has read them."""
        return [self._requests, self._replies]

    def receive(self) -> Incoming | None:
        """The next well-formed request, or None. Bad ones are counted, skipped and, where possible, answered."""
        while True:
            try:
                header = self._read(self._requests, 0)
            except VersionMismatch as error:
                self.refuse(error)
                self.error(Header(Kind.HELLO, error.sender), Reason.VERSION, str(error))
                continue
            except RemoteProtocolError as error:
                self.refuse(error)
                continue
            return None if header is None else self._message(header, self._requests)

    def departures(self) -> list[int]:
        """Clients whose last subscription ended since the last call: their sessions can be reaped.

        A client that came back over a new connection in the meantime is not among them.
        """
        left: dict[int, None] = {}
        while True:
            try:
                event = self._replies.recv(zmq.NOBLOCK)
            except zmq.Again:
                return list(left)
            sender = sender_of(event[1:])
            if sender is None or event[1:2] != self.plane.value:
                continue
            if event[:1] == b"\0":
                left[sender] = None
            else:
                left.pop(sender, None)

    def send(self, header: Header, *frames: Payload) -> bool:
        """Reply to `header.sender`; never blocks. False, and counted, where that client is stuck."""
        parts: list[Any] = [topic(self.plane, header.sender) + pack_header(header), *map(_sendable, frames)]
        try:
            self._replies.send_multipart(parts, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            self.dropped += 1
            return False
        return True

    def error(self, request: Header, reason: Reason, sentence: str, *, epoch: int = 0) -> None:
        """Refuse a request in words."""
        body = (str(reason), sentence[:2000])
        self.send(Header(Kind.ERROR, request.sender, request.slot, epoch, request.seq, body))

    def close(self) -> None:
        """Close both sockets; replies already handed over get a moment to leave."""
        self._requests.close(linger=0)
        self._replies.close(linger=500)


class ClientPort(_Port):
    """The connecting end of a plane: requests out on a PUSH, replies in on a SUB with the client's own topic.

    Args:
      context: of this process.
      plane: whose letter opens the topic.
      endpoint: of the server.
      sender: random id of this client.
      send_hwm: requests that may wait in this process.
      linger_ms: how long closing waits for requests to leave.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        plane: Plane,
        endpoint: str,
        sender: int,
        *,
        send_hwm: int = 16,
        linger_ms: int = 0,
    ) -> None:
        super().__init__()
        self.plane = plane
        self.sender = sender
        self.endpoint = endpoint
        self._context = context
        self._limits = (send_hwm, linger_ms)
        self._open()

    def _open(self) -> None:
        place = Endpoint.parse(self.endpoint).resolved()
        send_hwm, linger_ms = self._limits
        self._requests = _socket(self._context, zmq.PUSH, send_hwm=send_hwm, linger_ms=linger_ms)
        self._replies = _socket(self._context, zmq.SUB, receive_hwm=256)
        self._replies.set(zmq.SUBSCRIBE, topic(self.plane, self.sender))
        _connect(self._replies, place, REPLIES)
        _connect(self._requests, place, REQUESTS)

    def reopen(self) -> None:
        """Replace both sockets: the name is resolved again, and a connection that libzmq gave up comes back.

        A `Poller` made before still waits on the old ones: make a new one.
        """
        self.close()
        self._last = None
        self._open()

    @property
    def pollable(self) -> list[Any]:
        """What `Poller` waits on."""
        return [self._replies]

    def receive(self) -> Incoming | None:
        """The next well-formed reply, or None.

        Raises:
          VersionMismatch: the server speaks another version; nothing can come of this.
        """
        while True:
            try:
                header = self._read(self._replies, TOPIC_BYTES)
            except VersionMismatch:
                raise
            except RemoteProtocolError as error:
                self.refuse(error)
                continue
            return None if header is None else self._message(header, self._replies)

    def send(self, header: Header, *frames: Payload, copy: bool = True) -> bool:
        """Send a request; never blocks. False where the server is absent or behind.

        With copy=False the frames must stay unchanged until the server has answered.
        """
        try:
            parts: list[Any] = [pack_header(header), *map(_sendable, frames)]
            self._requests.send_multipart(parts, zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close both sockets."""
        self._requests.close()
        self._replies.close(linger=0)


class WeightsPublisher:
    """Broadcasts versions of the weights; whoever subscribes late gets the newest at once.

    Args:
      context: of this process.
      endpoint: of the learner; its third socket carries the weights.

    Raises:
      ConfigError: the endpoint cannot be bound.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = _socket(context, zmq.XPUB, send_hwm=2)
        self._socket.set(zmq.XPUB_MANUAL_LAST_VALUE, 1)
        self._newest: list[Any] = []
        try:
            _bind(self._socket, Endpoint.parse(endpoint), WEIGHTS)
        except ConfigError:
            self.close()
            raise

    @property
    def pollable(self) -> list[Any]:
        """What `Poller` waits on."""
        return [self._socket]

    def publish(self, header: Header, snapshot: Payload) -> None:
        """Send one version to every subscriber. `snapshot` must never change afterwards."""
        self.welcome()
        self._newest = [WEIGHTS_TOPIC + pack_header(header), *chunks(snapshot)]
        self._socket.send_multipart(self._newest, zmq.NOBLOCK, copy=False)

    def welcome(self) -> None:
        """Serve the newest version to those who subscribed since the last call."""
        while True:
            try:
                event = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            arrival = event[:1] == b"\1"
            if arrival:
                self._socket.set(zmq.SUBSCRIBE, event[1:])
            # The next send goes to the client behind this event alone. Where there is nothing for it, a message that
            # nobody subscribes to takes that place; otherwise the next version would reach nobody else.
            parts = self._newest if arrival and self._newest else [NO_TOPIC]
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """Close the socket, letting the last version leave."""
        self._socket.close(linger=500)


class WeightsSubscriber(_Port):
    """Receives versions of the weights."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        super().__init__()
        self.endpoint = endpoint
        self._context = context
        self._open()

    def _open(self) -> None:
        place = Endpoint.parse(self.endpoint).resolved()
        self._socket = _socket(self._context, zmq.SUB, receive_hwm=2)
        self._socket.set(zmq.SUBSCRIBE, WEIGHTS_TOPIC)
        _connect(self._socket, place, WEIGHTS)

    def reopen(self) -> None:
        """Replace the socket, as `ClientPort.reopen`."""
        self.close()
        self._last = None
        self._open()

    @property
    def pollable(self) -> list[Any]:
        """What `Poller` waits on."""
        return [self._socket]

    def receive(self) -> Incoming | None:
        """The next well-formed version, or None. Raises VersionMismatch as `ClientPort.receive`."""
        while True:
            try:
                header = self._read(self._socket, len(WEIGHTS_TOPIC))
            except VersionMismatch:
                raise
            except RemoteProtocolError as error:
                self.refuse(error)
                continue
            return None if header is None else self._message(header, self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)


WEIGHTS_TOPIC = topic(Plane.WEIGHTS, 0)
NO_TOPIC = b"\0"


class Poller:
    """Waits until one of several ports has something to read."""

    def __init__(self, ports: Iterable[Any] = (), files: Sequence[int] = ()) -> None:
        self._poller = zmq.Poller()
        for port in ports:
            for entry in port.pollable:
                self._poller.register(entry, zmq.POLLIN)
        for file in files:
            self._poller.register(file, zmq.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Return early as soon as anything can be read."""
        # rounded up: a wait of less than a millisecond would otherwise be none, and its loop would spin
        return bool(self._poller.poll(max(0, math.ceil(min(timeout_s, MAX_WAIT_S) * 1000))))


def chunks(snapshot: Payload) -> list[memoryview]:
    """The bytes of a snapshot in frames of at most CHUNK_BYTES, not copied."""
    view = _view(snapshot).cast("B")
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]


def _view(payload: Payload) -> memoryview:
    return memoryview(payload)  # type: ignore[arg-type]  # numpy declares its buffer for Python 3.12 on


def _sendable(payload: Payload) -> memoryview:
    """One frame. A larger one than the receiver allows would cut the connection, and do so at every repetition."""
    view = _view(payload)
    if view.nbytes > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {view.nbytes} bytes cannot travel, at most {MAX_FRAME_BYTES} can")
    return view


def _socket(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    *,
    send_hwm: int = 1,
    receive_hwm: int = 1,
    linger_ms: int = 0,
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option, value in (
        (zmq.SNDHWM, send_hwm),
        (zmq.RCVHWM, receive_hwm),
        (zmq.LINGER, linger_ms),
        (zmq.IMMEDIATE, int(kind == zmq.PUSH)),  # no request queues towards an absent server: the session repeats it
        (zmq.CONNECT_TIMEOUT, 3_000),
        (zmq.HANDSHAKE_IVL, 5_000),
        (zmq.RECONNECT_IVL, 100 + random.randrange(150)),  # noqa: S311 - jitter, not a secret
        (zmq.RECONNECT_IVL_MAX, 3_000),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 30),
        (zmq.TCP_KEEPALIVE_INTVL, 10),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
        (zmq.BACKLOG, 1024),
    ):
        socket.set(option, value)
    return socket


def _connect(socket: zmq.Socket[bytes], place: Endpoint, index: int) -> None:
    socket.set(zmq.IPV6, int(place.host.startswith("[")))
    socket.connect(place.socket(index))


def _bind(socket: zmq.Socket[bytes], place: Endpoint, index: int) -> None:
    place.refuse_if_taken(index)
    socket.set(zmq.IPV6, int(place.host.startswith("[")))
    try:
        socket.bind(place.socket(index))
    except zmq.ZMQError as error:
        why = "is in use by another process" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error}"
        raise ConfigError(f"{place.socket(index)} {why}") from error
