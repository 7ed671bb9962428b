"""The connecting end of a plane: requests out on a PUSH, replies in on a SUB."""

from __future__ import annotations

from typing import Any

import zmq

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.endpoints import Endpoint
from zerobeast.common.transport.context import Context
from zerobeast.common.transport.incoming import Incoming
from zerobeast.common.transport.ports import Port
from zerobeast.common.transport.sockets import REPLIES, REQUESTS, Payload, connect, make_socket, sendable
from zerobeast.common.wire.messages import REPLY_KINDS, TOPIC_BYTES, VERSIONS, Header, Plane, pack_header, topic


class ClientPort(Port):
    """The connecting end of a plane: requests out on a PUSH, replies in on a SUB with the client's own topic.

    Args:
      plane: its letter opens the topic.
      sender: random id of this client.
      send_hwm: requests that may wait in this process.
      linger_ms: how long closing waits for requests to leave.
    """

    def __init__(
        self, context: Context, plane: Plane, endpoint: str, sender: int, *, send_hwm: int = 16, linger_ms: int = 0
    ) -> None:
        super().__init__(VERSIONS[plane], REPLY_KINDS[plane])
        self.plane = plane
        self.sender = sender
        self.endpoint = endpoint
        self._context = context
        self._limits = (send_hwm, linger_ms)
        self._open(Endpoint.parse(endpoint).resolved())

    def _open(self, place: Endpoint) -> None:
        send_hwm, linger_ms = self._limits
        self._requests = make_socket(self._context, zmq.PUSH, send_hwm=send_hwm, linger_ms=linger_ms)
        self._replies = make_socket(self._context, zmq.SUB, receive_hwm=256)
        self.pollable = [self._replies]
        self._replies.set(zmq.SUBSCRIBE, topic(self.plane, self.sender))
        connect(self._context, self._replies, self.plane, place, REPLIES)
        connect(self._context, self._requests, self.plane, place, REQUESTS)

    def reopen(self) -> None:
        """Replace both sockets: the name is resolved again, and a connection that libzmq gave up is made again.

        A `Poller` made before still waits on the old sockets: make a new one.

        Raises:
          PeerLost: the name does not resolve now; the old sockets stay.
        """
        place = Endpoint.parse(self.endpoint).resolved()
        self.close()
        self._last = None
        self._open(place)

    def _check_sender(self, _frame: bytes | zmq.Frame, sender: int) -> None:
        if sender != self.sender:
            raise RemoteProtocolError(
                f"a reply has sender {sender}, expected that of its topic, {self.sender}", "sender"
            )

    def receive(self) -> Incoming | None:
        """The next well-formed reply, or None.

        Raises:
          VersionMismatch: the server speaks a version that this client does not know; no session is possible.
        """
        return self._next(self._replies, TOPIC_BYTES)

    def send(self, header: Header, *frames: Payload, copy: bool = True) -> bool:
        """Send a request; never blocks. False if the server is absent or behind.

        With copy=False the frames must stay unchanged until the server has answered.
        """
        try:
            parts: list[Any] = [pack_header(header), *map(sendable, frames)]
            self._requests.send_multipart(parts, zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._requests.close()
        self._replies.close(linger=0)
