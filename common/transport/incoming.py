"""An incoming message: what can be done with it between its header and the next message."""

from __future__ import annotations

from dataclasses import dataclass, replace

import zmq

from zerobeast.common.transport.sockets import Payload, view_of
from zerobeast.common.wire.messages import Header

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
