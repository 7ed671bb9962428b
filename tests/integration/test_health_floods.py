"""The health port under hostile clients: the page stays available to others."""

import logging
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from tests.helpers import wait_until
from tests.integration.test_health import served
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.service.health_server import MAX_OPEN


def visit(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20.0)


def threads() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_requests_that_never_end_hold_no_threads_and_keep_the_page_from_nobody() -> None:
    with served() as (_, address), ExitStack() as stack:
        for number in range(10 * MAX_OPEN):
            stack.enter_context(visit(address)).sendall(b"GET /healthz HTTP/1.0\r\nx: " + b"y" * number)
        assert fetch_page(address, 20.0)
        wait_until(lambda: threads() <= MAX_OPEN)
        assert fetch_page(address, 20.0)


def test_the_oldest_connection_is_closed_and_the_newest_is_served() -> None:
    with served() as (_, address), ExitStack() as stack:
        visitors = [stack.enter_context(visit(address)) for _ in range(MAX_OPEN + 1)]
        oldest, newest = visitors[0], visitors[-1]
        assert oldest.recv(1) == b""
        newest.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert newest.recv(100).startswith(b"HTTP/1.0 200")


def test_clients_that_hang_up_leave_no_line_in_the_log(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with served() as (_, address):
        for _ in range(50):
            rude = visit(address)
            rude.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            rude.close()
        assert fetch_page(address, 20.0)
        wait_until(lambda: not threads())
    assert capfd.readouterr().err == ""
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
