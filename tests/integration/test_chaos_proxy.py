"""The proxy that benchmarks and fault tests put before a server: it delivers every byte in order and injects faults."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.helpers import free_port, wait_until
from zerobeast.tools.chaos.proxy import Proxy

DELAY_S = 0.05


def echo(server: socket.socket) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return

    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


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


def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        data = client.recv(1 << 20)
        assert data, "it has ended"
        received += data
    return received


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.3)
    try:
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(20)


def test_it_delivers_every_byte_in_order_and_no_earlier_than_its_delay(proxy: Proxy) -> None:
    with connect(proxy) as client:
        sent = bytes(range(256)) * 8192
        started = time.monotonic()
        threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
        assert client.recv(1) == sent[:1]
        assert time.monotonic() - started >= 2 * DELAY_S
        assert receive(client, len(sent) - 1) == sent[1:]


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_ends_open_connections_and_serves_later_ones(proxy: Proxy, reset: bool) -> None:
    with connect(proxy) as client:
        proxy.cut(reset=reset)
        if reset:
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        else:
            assert client.recv(1) == b""
    wait_until(lambda: not proxy.connections)
    with connect(proxy) as client:
        client.sendall(b"b")
        assert receive(client, 1) == b"b"


def test_held_bytes_of_either_direction_wait_and_arrive_after_release_unless_their_connection_stalls(
    proxy: Proxy,
) -> None:
    with connect(proxy) as client:
        proxy.hold(to_server=False)
        client.sendall(b"abc")
        assert is_silent(client)
        proxy.hold(to_clients=False)
        assert receive(client, 3) == b"abc", "the server had it, and its answer was on its way"
        proxy.stall()
        proxy.release()
        client.sendall(b"def")
        assert is_silent(client)
        with connect(proxy) as other:
            other.sendall(b"ghi")
            assert receive(other, 3) == b"ghi"
