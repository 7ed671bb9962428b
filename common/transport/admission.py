"""Who may connect: libzmq asks for every connection whether its key is admitted (ZAP, ZeroMQ RFC 27).

A thread answers, since a handshake cannot wait while a service computes. The folder of keys is read again when
a client asks and the last reading is older than REREAD_S, so that keys can be added and removed without a restart.
"""

from __future__ import annotations

import contextlib
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

    @property
    def alive(self) -> bool:
        """Whether the thread still answers; without it no handshake ends."""
        return self._thread.is_alive()

    def _run(self) -> None:
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
            *(address.decode(errors="replace"), plane.name.lower(), key.decode(), CLIENTS[plane], self._keys.folder),
        )
