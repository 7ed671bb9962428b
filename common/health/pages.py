"""Fetching the health page of a service."""

from __future__ import annotations

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
    """Of the service that wrote a status file, the address of its page, and its machine unless that is this one.

    The address is empty if there is no page, or only its machine can ask for it.
    """
    try:
        found = json.loads(status.read_text())
        address, host = str(found["health"]), str(found.get("host") or socket.gethostname())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "", ""
    name, _, port = address.rpartition(":")
    if host == socket.gethostname():
        return address, ""
    if name.strip("[]") in ANY:
        return f"{host}:{port}", host
    return "" if re.fullmatch(r"127\..*|localhost|\[?::1\]?", name) else address, host


def fetch_page(address: str, timeout_s: float = ANSWER_LIMIT_S) -> dict[str, Any] | None:
    """The page of the service at host:port, or None if it does not answer with one, whatever the address is."""
    host, _, port = address.rpartition(":")
    try:
        with closing(http.client.HTTPConnection(_reachable(host), int(port), timeout=timeout_s)) as connection:
            connection.request("GET", "/healthz")
            page = json.loads(connection.getresponse().read(MAX_PAGE_BYTES))
    except (OSError, ValueError, OverflowError, RecursionError, http.client.HTTPException):
        return None
    return page if isinstance(page, dict) else None


def _reachable(host: str) -> str:
    """The host to connect to for a page that is bound to `host`."""
    plain = host.strip("[]")
    return ANY.get(plain, plain)
