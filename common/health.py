"""The health page of a service: what its own loop last wrote, served over HTTP.

/livez   200 while the loop turns, 503 once it has not for STALL_S
/readyz  200 once the service is ready and while it does not drain, else 503
/healthz the numbers, as JSON

The HTTP thread only reads: a stuck loop shows as a growing `loop_age_s` although the page is still served.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from common.errors import ConfigError
from common.service import Service

STALL_S = 30.0


class HealthServer:
    """Serves one service's page.

    Args:
      service: whose page.
      host: to bind.
      port: to bind, 0 for a free one; `port` tells which.

    Raises:
      ConfigError: the address is taken or not this machine's.
    """

    def __init__(self, service: Service, host: str, port: int) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler_for(service))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"health.host {host!r}, health.port {port}: cannot listen there: {reason}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _page(service: Service, path: str) -> tuple[int, dict[str, Any]]:
    page = {**service.page, "loop_age_s": round(service.clock() - service.loop_at, 3)}
    live = page["loop_age_s"] < STALL_S
    ready = page.get("state") == "ready"
    status = {"/livez": live, "/readyz": live and ready, "/healthz": True}.get(path)
    if status is None:
        return 404, {"error": "known paths: /livez, /readyz, /healthz"}
    return 200 if status else 503, page


def _handler_for(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            code, page = _page(service, self.path)
            body = json.dumps(page, default=str).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Probes come every second: say nothing."""

    return Handler
