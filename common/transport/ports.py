"""Both ends of a plane: the server binds a PULL and an XPUB, the client connects a PUSH and a SUB.

PULL + XPUB is as fast as ROUTER, and a subscription doubles as a lease on the client.
"""

import logging
from collections import Counter
from collections.abc import Set
from functools import partial
from typing import Any

import zmq

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import Refusal, RemoteProtocolError, VersionMismatch
from zerobeast.common.transport.context import Context
from zerobeast.common.transport.sockets import REPLIES, REQUESTS, Incoming, Payload, make_socket, to_frame
from zerobeast.common.transport.subscriptions import Owners, Subscriptions
from zerobeast.common.wire.messages import (
    BARE_KINDS,
    REASONS_BY_REFUSAL,
    REPLY_KINDS,
    TOPIC_BYTES,
    Header,
    Kind,
    Plane,
    Reason,
    pack_header,
    topic,
    unpack_header,
)

log = logging.getLogger(__name__)

MAX_PER_CALL = 16  #: bad messages, each costing up to a millisecond: a flood must not keep a service from its loop
SEND_HWM, RECEIVE_HWM = 16, 64  #: requests that may wait in a client, and in a server for each client
_UNREAD_HEADER = Header(Kind.BYE, 0)


class Port:
    """What both ends share: reading headers, counting refusals."""

    def __init__(self, kinds: Set[Kind] = frozenset(Kind)) -> None:
        self._kinds = kinds  #: those accepted
        self.refused: Counter[Refusal] = Counter()  #: bad messages by reason
        self.malformed = 0  #: messages refused since the last one that could be read
        self.pollable: list[Any] = []  #: what `Poller` waits on
        self._last: Incoming | None = None
        self._owners: Owners | None = None  #: of client ids, if messages come with keys

    def _read(self, socket: zmq.Socket[bytes], skip: int) -> Incoming | None:
        """The next message, or None if nothing waits. Raises RemoteProtocolError on a bad one."""
        if self._last is not None and not self._last.discard():
            return None
        self._last = None
        try:
            frame = socket.recv(zmq.NOBLOCK, copy=self._owners is None)
        except zmq.Again:
            return None
        self._last = Incoming(_UNREAD_HEADER, socket)
        data = memoryview(frame) if isinstance(frame, bytes) else frame.buffer
        self._last.header = header = unpack_header(data[skip:], partial(self._check_sender, frame))
        if header.kind not in self._kinds:
            raise RemoteProtocolError(f"{header.kind.name} does not belong here", "kind")
        if header.kind in BARE_KINDS and self._last.more:
            raise RemoteProtocolError(f"{header.kind.name} is one frame, and more came", "payload")
        return self._last

    def _check_sender(self, frame: bytes | zmq.Frame, sender: int) -> None:
        """Raise RemoteProtocolError if a message cannot be from the conversation that it names."""
        if self._owners is not None and isinstance(frame, zmq.Frame):
            self._owners.check(sender, str(frame.get("User-Id")))

    def _next(self, socket: zmq.Socket[bytes], skip: int) -> Incoming | None:
        """The next well-formed message; None if none waits, or if too many bad ones came before it."""
        for _ in range(MAX_PER_CALL):
            try:
                message = self._read(socket, skip)
            except VersionMismatch as error:
                self._on_mismatch(error)
            except RemoteProtocolError as error:
                self.refuse(error)
            else:
                self.malformed = 0 if message else self.malformed
                return message
        return None

    def _on_mismatch(self, error: VersionMismatch) -> None:
        raise error

    def refuse(self, error: RemoteProtocolError) -> None:
        """Count a bad message; the first of each kind is logged."""
        if not self.refused[error.reason]:
            log.warning("refused a message: %s", error)
        self.refused[error.reason] += 1
        self.malformed += 1


class ServerPort(Port):
    """The binding end of a plane: requests in on a PULL, replies out on an XPUB.

    Args:
      plane: its letter opens the topics.
      endpoint: "tcp://*:5555" or "ipc:///path"; two sockets are bound, starting there.
      epoch: id of this start of the server, sent to every client whose subscription arrives; 0: it is not sent.

    Raises:
      ConfigError: the endpoint cannot be bound.
    """

    def __init__(self, context: Context, plane: Plane, endpoint: str, *, epoch: int = 0) -> None:
        super().__init__()
        self.plane = plane
        self._epoch = epoch
        self.dropped = 0  #: replies that a stuck client did not take
        place = Endpoint.parse(endpoint)
        self._requests = make_socket(context, zmq.PULL, receive_hwm=RECEIVE_HWM)
        self._replies = make_socket(context, zmq.XPUB, send_hwm=256)
        self._replies.set(zmq.XPUB_NODROP, 1)
        self.pollable = [self._requests, self._replies]  # the latter signals arrivals, until `changes` has read them
        self._context = context
        self._owners = Owners() if context.keys_at(place) else None
        self._subscriptions = Subscriptions(self._replies, plane, self._owners, self.refuse)
        context.bind(plane, place, {REQUESTS: self._requests, REPLIES: self._replies})

    def receive(self) -> Incoming | None:
        """The next well-formed request, or None. Bad ones are counted, skipped and, where possible, answered."""
        message = self._next(self._requests, 0)
        if message is not None and message.header.kind is Kind.HELLO:
            self._subscriptions.read()  # or the answer would not reach the client
        return message

    def _on_mismatch(self, error: VersionMismatch) -> None:
        self.reject(Header(Kind.HELLO, error.sender), error)

    def departures(self) -> list[int]:
        """Clients that have gone since the last call and not come back: their sessions can be reaped."""
        return [sender for sender, here in self.changes().items() if not here]

    def changes(self) -> dict[int, bool]:
        """Clients that came or went since the last call, and whether they are here now.

        New arrivals are sent the epoch of this server: a client that has another one sends HELLO again at once.
        """
        if turned_away := self._context.turned_away:
            self.refused["key"] = turned_away
        changes = self._subscriptions.changes()
        for sender, here in changes.items():
            if here and self._epoch:
                self.send(Header(Kind.HERE, sender, epoch=self._epoch))
        return changes

    def hears(self, sender: int) -> bool:
        """Whether a client would get a reply; if not, it needs no session."""
        return self._subscriptions.has(sender)

    def send(self, header: Header, *frames: Payload) -> bool:
        """Reply to `header.sender`; never blocks. False, and counted, if that client is stuck."""
        parts: list[Any] = [topic(self.plane, header.sender) + pack_header(header), *map(to_frame, frames)]
        try:
            self._replies.send_multipart(parts, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            self.dropped += 1
            return False
        return True

    def here(self, request: Header, epoch: int) -> None:
        """Send HERE for a request that is still being worked on."""
        self.send(Header(Kind.HERE, request.sender, request.slot, epoch, max(1, request.seq)))

    def reject(self, request: Header, error: RemoteProtocolError, *, epoch: int = 0) -> None:
        """Count a request as refused, and send an ERROR to its sender."""
        self.refuse(error)
        self.error(request, REASONS_BY_REFUSAL.get(error.reason, Reason.TERMS), str(error), epoch=epoch)

    def error(self, request: Header, reason: Reason, sentence: str, *, epoch: int = 0) -> None:
        """Send an ERROR with a description of what is wrong."""
        if len(sentence) > 2000:  # after the long name of what is wrong, its end has the reason
            sentence = f"{sentence[:995]} ... {sentence[-1000:]}"
        body = (str(reason), sentence)
        self.send(Header(Kind.ERROR, request.sender, request.slot, epoch, request.seq, body))

    def close(self) -> None:
        """Close both sockets; replies already handed over get a moment to leave."""
        self._requests.close(linger=0)
        self._replies.close(linger=500)


class ClientPort(Port):
    """The connecting end of a plane: requests out on a PUSH, replies in on a SUB with the client's own topic.

    Args:
      plane: its letter opens the topic.
      sender: random id of this client.
      linger_ms: how long closing waits for requests to leave.
    """

    def __init__(self, context: Context, plane: Plane, endpoint: str, sender: int, *, linger_ms: int = 0) -> None:
        super().__init__(REPLY_KINDS[plane])
        self.plane = plane
        self.sender = sender
        self.endpoint = endpoint
        self._context = context
        self._linger_ms = linger_ms
        self._open(Endpoint.parse(endpoint).resolve())

    def _open(self, place: Endpoint) -> None:
        self._requests = make_socket(self._context, zmq.PUSH, send_hwm=SEND_HWM, linger_ms=self._linger_ms)
        self._replies = make_socket(self._context, zmq.SUB, receive_hwm=256)
        self.pollable = [self._replies]
        self._replies.set(zmq.SUBSCRIBE, topic(self.plane, self.sender))
        self._context.connect(self._replies, self.plane, place, REPLIES)
        self._context.connect(self._requests, self.plane, place, REQUESTS)

    def reopen(self) -> None:
        """Replace both sockets: the name is resolved again, and a connection that libzmq gave up is made again.

        A `Poller` made before still waits on the old sockets: make a new one.

        Raises:
          PeerLost: the name does not resolve now; the old sockets stay.
        """
        place = Endpoint.parse(self.endpoint).resolve()
        self.close()
        self._last = None
        self._open(place)

    def _check_sender(self, _frame: bytes | zmq.Frame, sender: int) -> None:
        if sender != self.sender:
            raise RemoteProtocolError(f"a reply has sender {sender}, expected {self.sender} of its topic", "sender")

    def receive(self) -> Incoming | None:
        """The next well-formed reply, or None.

        Raises:
          VersionMismatch: the server uses another version; no session is possible.
        """
        return self._next(self._replies, TOPIC_BYTES)

    def _on_mismatch(self, error: VersionMismatch) -> None:
        error.args = (f"{self.endpoint}: {error}",)
        raise error

    def send(self, header: Header, *frames: Payload, copy: bool = True) -> bool:
        """Send a request; never blocks. False if the server is absent or behind.

        With copy=False the frames must stay unchanged until the server has answered.
        """
        try:
            parts: list[Any] = [pack_header(header), *map(to_frame, frames)]
            self._requests.send_multipart(parts, zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._requests.close()
        self._replies.close(linger=0)
