"""The health page of a service: what its own loop last wrote, served over HTTP.

/livez   200 while the loop turns, or gets on in a long turn; 503 after STUCK_S without either, or once it can
         admit no client any more
/readyz  200 once the service is ready and while it does not drain, else 503; 200 while it stalls, since it takes work
/healthz the numbers, as JSON
/metrics the numbers, for Prometheus

One thread serves it and only reads: a stuck loop shows as a growing `loop_age_s` although the page is still served.
"""

import json
import logging
import selectors
import socket
import threading
import time
from http import HTTPStatus
from typing import Any, Self

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.health import metrics
from zerobeast.common.service.base import Service
from zerobeast.common.settings.run import HealthConfig

log = logging.getLogger(__name__)

STUCK_S = 30.0
REST_S = 0.1
PATHS = ("/livez", "/readyz", "/healthz", "/metrics")
MAX_OPEN = 128  #: connections at a time
MAX_REQUEST_BYTES = 16 << 10
LIMIT_S = 5.0  #: for a request and its answer
READS, WRITES = selectors.EVENT_READ, selectors.EVENT_WRITE


class HealthServer:
    """Serves one service's page. Requests are answered at once; of too many clients that send none, the oldest goes.

    Args:
      service: whose page.
      settings: where to serve it, and how long a service may get nothing done. The attribute `port` has the bound port.

    Raises:
      ConfigError: the address is taken or not this machine's.
    """

    def __init__(self, service: Service, settings: HealthConfig) -> None:
        self._service, self._stall_after_s = service, settings.stall_after_s
        self._clients: dict[socket.socket, float] = {}  #: when each has to be done, the oldest first
        self._answers: dict[str, bytes] = {}  #: by path; whoever asks in the same turn gets the same
        self._ends = threading.Event()
        host, port = settings.host, settings.port
        family, backlog = socket.AF_INET6 if ":" in host else socket.AF_INET, 8 * MAX_OPEN
        both = host.strip("[]") == "::" and socket.has_dualstack_ipv6()
        what = f"health.host {host!r}, health.port {port}: cannot listen there"
        with raise_as(ConfigError, what, OSError, OverflowError, TypeError, ValueError):  # of one that no lookup takes
            place = host.strip("[]"), port
            self._listener = socket.create_server(place, family=family, backlog=backlog, dualstack_ipv6=both)
        self._listener.settimeout(0.0)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        with self._listener, selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listener, READS)
            while not self._ends.is_set():
                self._answers.clear()
                for key, writes in self._selector.select(REST_S):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._clients:
                        self._serve(key.fileobj, key.data, writes & WRITES)
                for client in [client for client, until in self._clients.items() if until < time.monotonic()]:
                    self._leave(client)
            for client in list(self._clients):
                self._leave(client)

    def _accept(self) -> None:
        for _ in range(MAX_OPEN // 4):  # in between, the requests of those that are here are read
            try:
                client, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no file is left: the connection stays pending, and without a rest the loop would spin
                time.sleep(REST_S)
                return
            client.settimeout(0.0)
            if len(self._clients) == MAX_OPEN:
                self._leave(next(iter(self._clients)))
            self._clients[client] = time.monotonic() + LIMIT_S
            self._selector.register(client, READS, b"")

    def _serve(self, client: Any, data: bytes, writes: int) -> None:
        """Go on with a client: `data` is what it has sent so far, or if it `writes`, what is left of its answer."""
        try:
            if not writes:
                data += (more := client.recv(MAX_REQUEST_BYTES))
                if b"\r\n\r\n" not in data and more and len(data) < MAX_REQUEST_BYTES:
                    self._selector.modify(client, READS, data)
                    return
                data = self._answer(data)
            if data := data[client.send(data) :]:
                self._selector.modify(client, WRITES, data)
            else:
                self._leave(client)
        except BlockingIOError:
            return
        except Exception as error:
            if not isinstance(error, OSError):  # a client that hangs up is no news
                log.exception("the health page failed")
            self._leave(client)

    def _leave(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
        client.close()

    def _answer(self, request: bytes) -> bytes:
        method, path, *_ = *request.split(b"\n", 1)[0].split(), b"", b""
        asked = path.decode(errors="replace").partition("?")[0] if method == b"GET" else ""
        if asked not in self._answers:
            status, kind, body = _answer(self.page(), asked)
            phrase = HTTPStatus(status).phrase
            head = f"HTTP/1.0 {status} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            self._answers[asked] = head.encode() + body
        return self._answers[asked]

    def page(self) -> dict[str, Any]:
        """What the loop last wrote, and what is computed at each reading: how long ago it turned, and what follows."""
        service = self._service
        page = {**service.page, "loop_age_s": round(service.clock() - max(service.loop_at, service.alive_at), 3)}
        page["live"] = page["loop_age_s"] < STUCK_S and all(context.sound for context in service.contexts)
        page["ready"] = page["live"] and page.get("state") == "ready"
        page["stalled"] = page["ready"] and page["stalled_s"] > self._stall_after_s
        return page


def _answer(page: dict[str, Any], path: str) -> tuple[int, str, bytes]:
    """Status, content type and body for a path."""
    if path == "/metrics":
        return 200, metrics.CONTENT_TYPE, metrics.render(page)
    good = {"/livez": page["live"], "/readyz": page["ready"], "/healthz": True}.get(path)
    if good is None:
        page = {"error": f"known paths: {', '.join(PATHS)}"}
    status = 404 if good is None else 200 if good else 503
    return status, "application/json", json.dumps(page, default=str).encode()
