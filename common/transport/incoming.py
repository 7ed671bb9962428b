"""A message on its way in: what may be asked of it between its header and the next message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import zmq

from common.messages import Header
from common.transport.sockets import Payload, view_of


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
        view = view_of(buffer)
        wanted = view.nbytes
        size = self._socket.recv_into(view, flags=zmq.NOBLOCK)  # the true size, also where it was cut
        good = size == wanted and self.more != last
        if not good:
            self.discard()
        return good

    def to(self, slot: int) -> Incoming:
        """The same message, for another slot of its client."""
        return Incoming(replace(self.header, slot=slot), self._socket)

    def keep(self) -> Kept:
        """Take it out of its socket, not copied, to be read later."""
        frames = []
        while self.more:
            frames.append(self._socket.recv(zmq.NOBLOCK, copy=False))
        return Kept(self.header, frames)

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


class Kept:
    """A message that was taken out of its socket, so that others can be read before it."""

    __slots__ = ("_frames", "header")

    def __init__(self, header: Header, frames: Iterable[zmq.Frame]) -> None:
        self.header = header
        self._frames = deque(frames)

    def into(self, buffer: Payload, *, last: bool = True) -> bool:
        """Copy the next frame, as `Incoming.into` does."""
        if not self._frames:
            return False
        view, frame = view_of(buffer), self._frames.popleft()
        good = len(frame) == view.nbytes and bool(self._frames) != last
        if good:
            view[:] = frame.buffer
        return good
