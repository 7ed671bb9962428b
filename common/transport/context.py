"""The context that all sockets of a process belong to, what protects them, and who may connect to them."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.process.usage import max_files, open_files
from zerobeast.common.transport.keys import CLIENTS, SERVERS, Keys
from zerobeast.common.wire.messages import Plane

if TYPE_CHECKING:
    from zerobeast.common.settings import SecurityConfig

log = logging.getLogger(__name__)

Socket = zmq.Socket[bytes]

MAX_SOCKETS = 65_535  #: per context, the most that libzmq can count; files run out first
REREAD_S = 1.0
LOG_PERIOD_S = 1.0  #: between two log lines about refused connections
MAX_NAMED = 1024  #: refused clients that are recorded, so that each is logged once


class Admission(threading.Thread):
    """Admits on each plane the keys of the role that connects there. Serves one context and ends with it.

    libzmq asks for every connection whether its key is admitted (ZAP, ZeroMQ RFC 27). A thread answers, since a
    handshake cannot wait while a service computes. The folder of keys is read again when a client asks and the last
    reading is older than REREAD_S, so that keys can be added and removed without a restart.
    """

    def __init__(self, context: zmq.Context[Socket], keys: Keys) -> None:
        super().__init__(name="admission", daemon=True)
        self.refused = 0  #: refused connections
        self._keys = keys
        self._admitted: dict[Plane, frozenset[bytes]] = {}
        self._read_at = {plane: float("-inf") for plane in Plane}
        self._named: set[tuple[bytes, bytes]] = set()
        self._log_at = float("-inf")
        self._socket = context.socket(zmq.REP)
        self._socket.bind("inproc://zeromq.zap.01")
        self.start()

    def run(self) -> None:
        """Answer until the context ends."""
        with contextlib.suppress(zmq.ContextTerminated):
            while True:
                request = self._socket.recv_multipart()
                self._socket.send_multipart([*request[:2], *self._verdict(request)])
        self._socket.close(linger=0)

    def _verdict(self, request: list[bytes]) -> list[bytes]:
        """Status, text, user id and metadata. Never raises: a request without an answer would be the last one."""
        try:
            _version, _request, domain, address, _id, _curve, raw = request
            plane, key, now = Plane(domain), z85.encode(raw), time.monotonic()
            if key in self._keys_of(plane, now):
                return [b"200", b"", key, b""]
            self.refused += 1
            self._log(plane, address, key, now)
        except Exception as error:  # a request that is malformed, or no keys are known yet and none can be read
            log.warning("a client cannot be admitted now, and has to try again: %r", error)
            return [b"300", b"", b"", b""]
        return [b"400", b"", b"", b""]

    def _keys_of(self, plane: Plane, now: float) -> frozenset[bytes]:
        """The plane's keys, those read before if the folder cannot be read now. Raises OSError if there are none."""
        if now - self._read_at[plane] > REREAD_S:
            try:
                self._admitted[plane] = self._keys.clients(plane)
            except OSError as error:
                if plane not in self._admitted:
                    raise
                log.warning("%s; the keys that were read before are admitted", error)
            self._read_at[plane] = now
        return self._admitted[plane]

    def _log(self, plane: Plane, address: bytes, key: bytes, now: float) -> None:
        if (address, key) in self._named or now - self._log_at < LOG_PERIOD_S:
            return
        if len(self._named) == MAX_NAMED:
            self._named.clear()
        self._named.add((address, key))
        self._log_at = now
        log.warning(
            "refused a connection from %s on the %s plane: its key %s is not that of any %s in %s",
            *(address.decode(errors="replace"), plane.name.lower(), key.decode()),
            *(" or ".join(CLIENTS[plane]), self._keys.folder),
        )


class Context(AbstractContextManager["Context"]):
    """A ZeroMQ context; create it after the process has started and never share it with a fork.

    Args:
      keys: those of the service that it belongs to; None for plain sockets.
      insecure: plain sockets may be bound where other machines can reach them.
      within: the context of the process, if several services share one and meet at inproc endpoints.

    Examples:
      >>> import zerobeast as zb
      >>> with zb.Context() as context:  # one for each process: several clients may share it
      ...     context.sound
      True
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
        return self._admission is None or self._admission.is_alive()  # without its thread no handshake ends

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
            files = f"{open_files():,} of {max_files():,} files are open"
            raise BeastError(f"no more sockets: {files}: raise `ulimit -n`") from error

    def keys_at(self, place: Endpoint) -> Keys | None:
        """The keys if sockets at `place` are encrypted and their messages carry the sender's key, else None."""
        return None if place.is_local else self._keys

    def connect(self, socket: Socket, plane: Plane, place: Endpoint, index: int) -> None:
        """Connect to a socket of an endpoint, encrypted so that only the holder of the server's secret key can read."""
        if keys := self.keys_at(place):
            socket.set(zmq.CURVE_SERVERKEY, keys.server(plane))
        self._prepare(socket, place)
        socket.connect(place.socket(index))

    def bind(self, plane: Plane, place: Endpoint, sockets: Mapping[int, Socket]) -> None:
        """Bind the sockets of an endpoint by index, encrypted so that only clients with a key of the plane connect.

        Raises:
          ConfigError: one cannot be bound, or without keys every machine in the network could talk to it. All of them
            are closed.
        """
        try:
            place.refuse_open(guarded=bool(self._keys) or self._insecure)
            for index, socket in sockets.items():
                self._bind(socket, plane, place, index)
        except ConfigError:
            for socket in sockets.values():
                socket.close(linger=0)
            raise

    def _bind(self, socket: Socket, plane: Plane, place: Endpoint, index: int) -> None:
        if keys := self.keys_at(place):
            self._admission = self._admission or Admission(self._zmq, keys)
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, plane.value)
            socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a ZAP handler no client is admitted
        self._prepare(socket, place)
        place.refuse_if_taken(index)
        try:
            socket.bind(place.socket(index))
        except zmq.ZMQError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "is in use by another process" if taken else f"cannot be bound: {error.strerror}"
            part = f" (socket {index + 1} of the endpoint {place.socket(0)})" if index and not place.is_local else ""
            other = f": give another {SERVERS[plane]}.endpoint" if taken else ""
            raise ConfigError(f"{place.socket(index)}{part} {why}{other}") from error

    def _prepare(self, socket: Socket, place: Endpoint) -> None:
        socket.set(zmq.IPV6, int(place.host.startswith("[")))
        if keys := self.keys_at(place):
            socket.set(zmq.CURVE_SECRETKEY, keys.secret)
            socket.set(zmq.CURVE_PUBLICKEY, keys.public)

    def term(self) -> None:
        """Wait until the last messages have left, then end; close every socket first. A shared context stays."""
        if self._is_shared:
            return
        self._zmq.term()
        if self._admission is not None:
            self._admission.join()


def open_context(security: SecurityConfig, role: str, within: Context | None = None) -> Context:
    """The context of a service, protected as configured; `within` is that of its process, if services share it.

    Raises:
      ConfigError: its keys cannot be used.
    """
    keys = Keys(security.keys, role, security.secret) if security.keys else None
    return Context(keys, insecure=security.insecure, within=within)
