"""The context that all sockets of a process belong to, and what protects them."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import zmq

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.process.descriptors import max_files, open_files
from zerobeast.common.settings.endpoints import Endpoint
from zerobeast.common.transport.admission import Admission
from zerobeast.common.transport.keys import Keys
from zerobeast.common.wire.messages import Plane

if TYPE_CHECKING:
    from zerobeast.common.settings.run import SecurityConfig

Socket = zmq.Socket[bytes]

MAX_SOCKETS = 65_535  #: per context, the most that libzmq can count; files run out first


class Context(AbstractContextManager["Context"]):
    """A ZeroMQ context; create it after the process has started and never share it with a fork.

    Args:
      keys: those of the service that it belongs to; None for plain sockets.
      insecure: plain sockets may be bound where other machines can reach them.
      within: the context of the process, if several services share one and meet at inproc endpoints.
    """

    def __init__(self, keys: Keys | None = None, *, insecure: bool = False, within: Context | None = None) -> None:
        self._keys, self._insecure, self._is_shared = keys, insecure, within is not None
        self._zmq: zmq.Context[Socket] = within._zmq if within else zmq.Context()
        self._zmq.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._admission: Admission | None = None

    def __exit__(self, *_error: object) -> None:
        self.term()

    @property
    def turned_away(self) -> int:
        """Connections refused because of their key."""
        return self._admission.refused if self._admission else 0

    @property
    def sound(self) -> bool:
        """Whether clients can still be admitted."""
        return self._admission is None or self._admission.alive

    def socket(self, kind: int) -> Socket:
        """A new socket of a kind such as zmq.PUSH.

        Raises:
          BeastError: this process has too many files open.
        """
        try:
            return self._zmq.socket(kind)
        except zmq.ZMQError as error:
            if error.errno != errno.EMFILE:
                raise
            raise BeastError(
                f"no more sockets: {open_files():,} of {max_files():,} files are open: raise `ulimit -n`"
            ) from error

    def encrypts(self, place: Endpoint) -> bool:
        """Whether sockets at `place` are encrypted and their messages carry the sender's key."""
        return self._keys is not None and not place.is_local

    def protect_server(self, socket: Socket, plane: Plane, place: Endpoint) -> None:
        """Encrypt a socket before it binds, and admit only clients whose key is one of the plane's.

        Raises:
          ConfigError: without keys, every machine in the network could talk to it.
        """
        if self._keys is None:
            if not (place.is_loopback or self._insecure):
                raise ConfigError(
                    f"{place} would be open to every machine that reaches it: expected --security.keys (`beast keygen` "
                    f"makes them), or --insecure where the network keeps strangers out"
                )
            return
        if place.is_local:
            return
        if self._admission is None:
            self._admission = Admission(self._zmq, self._keys)
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.ZAP_DOMAIN, plane.value)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a ZAP handler no client is admitted

    def protect_client(self, socket: Socket, plane: Plane, place: Endpoint) -> None:
        """Encrypt a socket before it connects, so that only the holder of the server's secret key can read it."""
        if self._keys is None or place.is_local:
            return
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.set(zmq.CURVE_SERVERKEY, self._keys.server(plane))

    def term(self) -> None:
        """Wait until the last messages have left, then end; close every socket first. A shared context stays."""
        if self._is_shared:
            return
        self._zmq.term()
        if self._admission is not None:
            self._admission.join()


def open_context(security: SecurityConfig, role: str, within: Context | None = None) -> Context:
    """The context of a service, protected as its settings say; `within` is that of its process, if services share it.

    Raises:
      ConfigError: its keys cannot be used.
    """
    keys = Keys(security.keys, role, security.secret) if security.keys else None
    return Context(keys, insecure=security.insecure, within=within)
