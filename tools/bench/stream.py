"""The yardstick of a bandwidth: a bare tcp stream over loopback between two processes."""

from __future__ import annotations

import contextlib
import socket
import time
from multiprocessing.connection import Connection

from zerobeast.common.errors import BeastError
from zerobeast.tools.bench.processes import START_LIMIT_S, Processes

WARMUP = 0.25  #: of the measured time


def stream_bytes_per_s(chunk_bytes: int, ring_bytes: int, seconds: float) -> float:
    """Bytes a second, sent in chunks of one size and received in place into a ring of memory that is there already."""
    ring = memoryview(bytearray(ring_bytes))
    with Processes() as processes, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_LIMIT_S)
        processes.start(send, server.getsockname()[1], chunk_bytes)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(None)
            _receive(connection, ring, WARMUP * seconds)
            received, elapsed_s = _receive(connection, ring, seconds)
    return received / elapsed_s


def _receive(connection: socket.socket, ring: memoryview, seconds: float) -> tuple[int, float]:
    """(bytes, seconds) of a while."""
    received, start = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - start) < seconds or not received:
        n = connection.recv_into(ring[received % len(ring) :])
        if not n:
            raise BeastError("the sender of the stream has ended")
        received += n
    return received, elapsed_s


def send(_pipe: Connection, port: int, chunk_bytes: int) -> None:
    """Send until the receiver has ended."""
    chunk = b"x" * chunk_bytes  # zeros might never be written, and then all be one page
    with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(chunk)
