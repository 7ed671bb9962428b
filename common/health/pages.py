"""Fetching the health page of a service."""

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.health.status import read_status

ANSWER_LIMIT_S = 2.0
MAX_PAGE_BYTES = 1 << 20
WILDCARD_HOSTS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - bound to any address: how it is reached here


def fetch_announced_page(status: Path, timeout_s: float = ANSWER_LIMIT_S, *, remote: bool) -> dict[str, Any] | None:
    """The page of the process that wrote a status file, or None if there is none; `remote` as for `read_announcement`.

    Another process may have the address by now, so the page has to be that of the process in the file.
    """
    page = fetch_page(read_announcement(status, remote=remote)[0], timeout_s)
    return page if page and page.get("pid") == read_status(status).pid else None


def read_announcement(status: Path, *, remote: bool) -> tuple[str, str]:
    """The address of the page in a status file, and its machine if another. The file may be of somebody else.

    Args:
      status: the file.
      remote: whether it decides what is reached beyond this machine.

    Returns:
      Each empty if there is none. So is the address if it is out of reach from here, or may not be reached.
    """
    _, host, address, _ = read_status(status)
    name, _, port = address.rpartition(":")
    name = name.strip("[]")
    here = name in WILDCARD_HOSTS or Endpoint(host=name).is_loopback
    if host == socket.gethostname():
        return (address, "") if here or remote else ("", name)
    there = f"{host}:{port}" if name in WILDCARD_HOSTS else "" if here else address
    return there if remote else "", host


def fetch_page(address: str, timeout_s: float = ANSWER_LIMIT_S) -> dict[str, Any] | None:
    """The page of the service at host:port, or None if it does not answer with one in time, whatever the address is."""
    name, _, port = address.rpartition(":")
    host = WILDCARD_HOSTS.get(name.strip("[]"), name.strip("[]"))
    until, answer = time.monotonic() + timeout_s, bytearray()
    with suppress(OSError, ValueError, OverflowError, RecursionError):
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            while len(answer) < MAX_PAGE_BYTES and (part := connection.recv(MAX_PAGE_BYTES)):
                answer += part
                connection.settimeout(until - time.monotonic())  # a ValueError once that is negative
        page = json.loads(answer.partition(b"\r\n\r\n")[2])
        return page if isinstance(page, dict) else None
    return None
