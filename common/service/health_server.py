"""The health page of a service: what its own loop last wrote, served over HTTP.

/livez   200 while the loop turns, 503 once it has not for STUCK_S or can admit no client any more
/readyz  200 once the service is ready and while it does not drain, else 503; 200 while it stalls, since it takes work
/healthz the numbers, as JSON
/metrics the numbers, for Prometheus

The HTTP threads only read: a stuck loop shows as a growing `loop_age_s` although the page is still served.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from zerobeast.common.errors import ConfigError
from zerobeast.common.health import metrics
from zerobeast.common.service.base import Service
from zerobeast.common.settings.run import HealthConfig

log = logging.getLogger(__name__)

STUCK_S = 30.0
REST_S = 0.1
PATHS = ("/livez", "/readyz", "/healthz", "/metrics")
MAX_OPEN = 16  #: connections at a time, each of which may cost a thread and 6 MB of headers


class HealthServer(ThreadingHTTPServer):
    """Serves one service's page, each connection in a thread of its own. If there are too many, the oldest is closed.

    Args:
      service: whose page.
      settings: where to serve it, and how long a service may get nothing done. The attribute `port` has the bound port.

    Raises:
      ConfigError: the address is taken or not this machine's.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: Service, settings: HealthConfig) -> None:
        self._service, self._stall_after_s = service, settings.stall_after_s
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        host, port = settings.host, settings.port
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError, TypeError, ValueError) as error:  # a host that cannot even be looked up
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise ConfigError(f"health.host {host!r}, health.port {port}: cannot listen there: {reason}") from error
        self.port: int = self.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="health", daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[Any, Any]:
        """Accept. If no file is left, the connection stays pending: rest a moment, or the loop would spin."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(REST_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            surplus = list(self._open)[:-MAX_OPEN]
            for oldest in surplus:
                del self._open[oldest]
        for oldest in surplus:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        if not isinstance(sys.exception(), OSError):  # a client that hangs up is no news
            log.exception("the health page of %s failed", client_address)

    def page(self) -> dict[str, Any]:
        """What the loop last wrote, plus what only a reader can tell: how long ago it turned, and what follows."""
        service = self._service
        page = {**service.page, "loop_age_s": round(service.clock() - service.loop_at, 3)}
        page["live"] = page["loop_age_s"] < STUCK_S and service.sound
        page["ready"] = page["live"] and page.get("state") == "ready"
        page["stalled"] = page["ready"] and page["stalled_s"] > self._stall_after_s
        return page


class _Handler(BaseHTTPRequestHandler):
    timeout = 5
    server: HealthServer

    def do_GET(self) -> None:
        status, kind, body = _answer(self.server.page(), self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Probes come every second: say nothing."""


def _answer(page: dict[str, Any], path: str) -> tuple[int, str, bytes]:
    """Status, content type and body for a path."""
    if path == "/metrics":
        return 200, metrics.CONTENT_TYPE, metrics.render(page)
    good = {"/livez": page["live"], "/readyz": page["ready"], "/healthz": True}.get(path)
    if good is None:
        page = {"error": f"known paths: {', '.join(PATHS)}"}
    status = 404 if good is None else 200 if good else 503
    return status, "application/json", json.dumps(page, default=str).encode()
