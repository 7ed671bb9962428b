"""The context that all sockets of a process belong to, and what protects them."""

from __future__ import annotations

from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from common.messages import Plane
from common.transport.keys import Keys

Socket = zmq.Socket[bytes]


class Context:
    """A ZeroMQ context; create it after the process has started and never share it with a fork.

    Args:
      keys: of this process; None for plain sockets.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys
        self._zmq: zmq.Context[Socket] = zmq.Context()
        self._admission: Any = None

    def socket(self, kind: int) -> Socket:
        """A new socket of a kind such as zmq.PUSH."""
        return self._zmq.socket(kind)

    def protect_server(self, socket: Socket) -> None:
        """Encrypt a socket before it binds, and admit only clients whose public key is in the folder."""
        if self._keys is None:
            return
        if self._admission is None:
            self._admission = ThreadAuthenticator(self._zmq)
            self._admission.start()
            self._admission.configure_curve(domain="*", location=str(self._keys.folder))
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.set(zmq.CURVE_SERVER, 1)

    def protect_client(self, socket: Socket, plane: Plane) -> None:
        """Encrypt a socket before it connects, to nobody but the holder of the secret key of the plane's server."""
        if self._keys is None:
            return
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.set(zmq.CURVE_SERVERKEY, self._keys.servers[plane])

    def term(self) -> None:
        """Wait until the last messages have left and end; every socket has to be closed."""
        if self._admission is not None:
            self._admission.stop()
        self._zmq.term()
