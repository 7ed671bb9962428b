"""A hostile peer of a ZeroMQ socket: uses ZMTP 3.0 over a bare socket, so that it can send what libzmq never would.

with RawPeer(endpoint, REQUESTS, b"PUSH") as peer:
    peer.say([header, payload], [b"garbage"])   # any frames will do
    peer.send(bytes(100))                        # or any bytes
"""

import contextlib
import socket
import struct
from collections.abc import Sequence

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport import sockets

REQUESTS, REPLIES, WEIGHTS = sockets.REQUESTS, sockets.REPLIES, sockets.WEIGHTS  #: which of a service's sockets
LIMIT_S = 60.0  #: for the other side to take or send anything
MORE, LONG, COMMAND = 1, 2, 4  #: flags of a frame, RFC 23
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(content: bytes, flags: int = 0) -> bytes:
    """Encode one frame with its header."""
    if len(content) < 256:
        return bytes((flags, len(content))) + content
    return bytes((flags | LONG,)) + struct.pack(">Q", len(content)) + content


def message(frames: Sequence[bytes]) -> bytes:
    """Encode a whole message."""
    last = len(frames) - 1
    return b"".join(frame(content, MORE if place < last else 0) for place, content in enumerate(frames))


class RawPeer(contextlib.AbstractContextManager["RawPeer"]):
    """One connection.

    Args:
      endpoint: of a service.
      index: which of its sockets.
      kind: what this end claims to be, such as b"PUSH"; empty to connect and send nothing.

    Raises:
      OSError: nothing listens there, or the other side ends the connection.
    """

    def __init__(self, endpoint: Endpoint, index: int, kind: bytes = b"") -> None:
        self.socket = socket.socket(socket.AF_UNIX if endpoint.path else socket.AF_INET)
        self._inbox = b""
        try:
            self.socket.settimeout(LIMIT_S)
            self.socket.connect(f"{endpoint.path}.{index}" if endpoint.path else (endpoint.host, endpoint.port + index))
            if kind:
                self.greet(kind)
        except BaseException:
            self.socket.close()
            raise

    def __exit__(self, *_error: object) -> None:
        self.close()

    def send(self, *encoded: bytes) -> None:
        """Send bytes as they are: the output of `message`, or worse."""
        self.socket.sendall(b"".join(encoded))

    def say(self, *messages: Sequence[bytes]) -> None:
        """Send messages, each of them a list of frames."""
        for frames in messages:
            self.send(message(frames))

    def receive(self) -> list[bytes]:
        """The next message. Raises OSError if none comes."""
        frames = []
        while True:
            flags, content = self._frame()
            if not flags & COMMAND:
                frames.append(content)
                if not flags & MORE:
                    return frames

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self.socket.close()

    def greet(self, kind: bytes) -> None:
        """Exchange greetings with the other side, as a socket of this kind."""
        self.send(GREETING)
        self._exactly(len(GREETING))
        self.send(frame(b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind, COMMAND))
        self._frame()

    def _frame(self) -> tuple[int, bytes]:
        flags, size = self._exactly(2)
        if flags & LONG:
            size = int.from_bytes(bytes((size,)) + self._exactly(7))
        return flags, self._exactly(size)

    def _exactly(self, n: int) -> bytes:
        while len(self._inbox) < n:
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the other side has hung up")
            self._inbox += more
        found, self._inbox = self._inbox[:n], self._inbox[n:]
        return found
