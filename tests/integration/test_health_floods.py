"""The health port under hostile clients: the page stays available to others."""

import logging
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from tests.integration.test_health import get, served
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.service.health_server import MAX_OPEN


def visit(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20.0)


def test_requests_that_never_end_hold_no_threads_and_keep_the_page_from_nobody() -> None:
    with served() as (_, address), ExitStack() as stack:
        before = threading.active_count()
        for number in range(3 * MAX_OPEN):
            stack.enter_context(visit(address)).sendall(b"GET /healthz HTTP/1.0\r\nx: " + b"y" * number)
        assert fetch_page(address, 20.0)
        assert threading.active_count() == before


def test_a_probe_is_answered_although_many_that_ask_for_nothing_come_after_it() -> None:
    with served() as (_, address), ExitStack() as stack:
        probes = [stack.enter_context(visit(address)) for _ in range(5)]
        for _ in range(MAX_OPEN - 5):
            stack.enter_context(visit(address)).sendall(b"GET /")
        for probe in probes:
            probe.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert [probe.recv(100)[:12] for probe in probes] == [b"HTTP/1.0 200"] * 5


def test_an_answer_larger_than_a_socket_holds_arrives_whole() -> None:
    with served(note="x" * (8 << 20)) as (_, address):
        assert len(get(address, "/healthz")[1]) > 8 << 20


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
    assert capfd.readouterr().err == ""
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
