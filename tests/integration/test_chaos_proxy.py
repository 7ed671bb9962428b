"""The proxy that benchmarks and fault tests put before a server: it delivers every byte in order and injects faults."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress

import pytest

from tests.helpers import free_port, wait_until
from zerobeast.tools.chaos.proxy import Proxy

DELAY_S = 0.05


def echo(server: socket.socket) -> None:
    """Send back what comes, to one client after another, until there are no more."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while data := connection.recv(1 << 16):
                    connection.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy before an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        target = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with Proxy(f"tcp://127.0.0.1:{free_port(1)}", target, sockets=(0,), delay_s=DELAY_S) as proxy:
            yield proxy
        server.shutdown(socket.SHUT_RDWR)


def connect(proxy: Proxy) -> socket.socket:
    before = proxy.connections
    client = socket.create_connection((proxy.listen.host, proxy.listen.port), timeout=20)
    wait_until(lambda: proxy.connections == before + 1)
    return client


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.3)
    try:
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(20)


def test_it_delivers_bytes_no_earlier_than_its_delay_and_those_that_it_held_after_release(proxy: Proxy) -> None:
    with connect(proxy) as client:
        started = time.monotonic()
        client.sendall(b"abc")
        assert client.recv(3, socket.MSG_WAITALL) == b"abc"
        assert time.monotonic() - started >= 2 * DELAY_S
        proxy.hold(to_server=False)
        client.sendall(b"def")
        assert is_silent(client)
        proxy.release()
        assert client.recv(3, socket.MSG_WAITALL) == b"def"
        proxy.stall()
        client.sendall(b"ghi")
        assert is_silent(client)


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_ends_open_connections_and_serves_later_ones(proxy: Proxy, reset: bool) -> None:
    with connect(proxy) as client:
        proxy.cut(reset=reset)
        with pytest.raises(ConnectionResetError) if reset else nullcontext():
            assert client.recv(1) == b""
    wait_until(lambda: not proxy.connections)
    with connect(proxy) as client:
        client.sendall(b"b")
        assert client.recv(1) == b"b"
