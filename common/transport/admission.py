"""Who may connect: libzmq asks for every connection whether its key is admitted (ZAP, ZeroMQ RFC 27).

A thread answers, since a handshake cannot wait while a service computes. The folder of keys is read again when
a client asks and the last reading is older than REREAD_S, so that keys can be added and removed without a restart.
"""

from __future__ import annotations

import logging
import threading
import time

import zmq
from zmq.utils import z85

from zerobeast.common.transport.keys import CLIENTS, Keys
from zerobeast.common.wire.messages import Plane

log = logging.getLogger(__name__)

REREAD_S = 1.0
LOG_PERIOD_S = 1.0  #: between two log lines about strangers
MAX_NAMED = 1024  #: strangers that are remembered, so that each is logged once


class Admission:
    """Admits on each plane the keys of the role that connects there. Serves one context and ends with it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self.refused = 0  #: refused connections
        self._keys = keys
        self._admitted: dict[Plane, frozenset[bytes]] = {}
        self._read_at = {plane: float("-inf") for plane in Plane}
        self._named: set[tuple[bytes, bytes]] = set()
        self._log_at = float("-inf")
        self._socket = context.socket(zmq.REP)
        self._socket.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._run, name="admission", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, once the context has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._answer(*self._socket.recv_multipart())
        except zmq.ContextTerminated:
            self._socket.close(linger=0)

    def _answer(
        self, version: bytes, request: bytes, domain: bytes, address: bytes, _id: bytes, _curve: bytes, raw: bytes
    ) -> None:
        plane, key, now = Plane(domain), z85.encode(raw), time.monotonic()
        if now - self._read_at[plane] > REREAD_S:
            self._read_at[plane], self._admitted[plane] = now, self._keys.clients(plane)
        if key in self._admitted[plane]:
            self._socket.send_multipart([version, request, b"200", b"", key, b""])
            return
        self._socket.send_multipart([version, request, b"400", b"", b"", b""])
        self.refused += 1
        self._log(plane, address, key, now)

    def _log(self, plane: Plane, address: bytes, key: bytes, now: float) -> None:
        if (address, key) in self._named or now - self._log_at < LOG_PERIOD_S:
            return
        if len(self._named) == MAX_NAMED:
            self._named.clear()
        self._named.add((address, key))
        self._log_at = now
        log.warning(
            "refused a connection from %s on the %s plane: its key %s is not that of any %s in %s",
            *(address.decode(), plane.name.lower(), key.decode(), CLIENTS[plane], self._keys.folder),
        )
