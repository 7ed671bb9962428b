"""Fetching the health page of a service."""

import http.client
import json
import re
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

ANSWER_LIMIT_S = 2.0
MAX_PAGE_BYTES = 1 << 20
ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - bound to any address: how it is reached here


def announced_page(status: Path, timeout_s: float = ANSWER_LIMIT_S) -> dict[str, Any] | None:
    """The page of the service that wrote a status file, or None if there is none."""
    return fetch_page(announced(status)[0], timeout_s)


def announced(status: Path) -> tuple[str, str]:
    """The address of the page in a status file, empty if out of reach from here; and its machine, if another."""
    try:
        found = json.loads(status.read_text())
        address, host = str(found["health"]), str(found.get("host") or socket.gethostname())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "", ""
    if host == socket.gethostname():
        return address, ""
    name, _, port = address.rpartition(":")
    if name.strip("[]") in ANY:
        return f"{host}:{port}", host
    return "" if re.match(r"127\.|localhost|\[?::1", name) else address, host


def fetch_page(address: str, timeout_s: float = ANSWER_LIMIT_S) -> dict[str, Any] | None:
    """The page of the service at host:port, or None if it does not answer with one, whatever the address is."""
    name, _, port = address.rpartition(":")
    host = ANY.get(name.strip("[]"), name.strip("[]"))
    try:
        with closing(http.client.HTTPConnection(host, int(port), timeout=timeout_s)) as connection:
            connection.request("GET", "/healthz")
            page = json.loads(connection.getresponse().read(MAX_PAGE_BYTES))
    except (OSError, ValueError, OverflowError, RecursionError, http.client.HTTPException):
        return None
    return page if isinstance(page, dict) else None
