"""The slow wire of the latency benchmark: every byte, in order, and late."""

import socket
import threading
import time
from pathlib import Path

import pytest

from deploy.bench.delay import DelayedSockets

pytestmark = pytest.mark.integration


def echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)


def test_it_delivers_everything_both_ways_and_not_before_its_time(tmp_path: Path) -> None:
    one_way_s = 0.05
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "real"))
        server.listen()
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        with (
            DelayedSockets({tmp_path / "near": tmp_path / "real"}, one_way_s),
            socket.socket(socket.AF_UNIX) as client,
        ):
            client.connect(str(tmp_path / "near"))
            sent = bytes(range(256)) * 8192
            started = time.monotonic()
            threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
            received = b""
            while len(received) < len(sent):
                received += client.recv(1 << 20)
                assert time.monotonic() - started >= 2 * one_way_s
            assert received == sent
        server.shutdown(socket.SHUT_RDWR)
