"""The proxy that benchmarks and fault tests put before a server: it delivers every byte in order and injects faults."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import free_port, wait_until
from zerobeast.tools.chaos.proxy import Proxy


def echo(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(1 << 16):
                connection.sendall(data)
        except OSError:
            return


def serve(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy before an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        target = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with Proxy(f"tcp://127.0.0.1:{free_port(1)}", target, sockets=(0,)) as proxy:
            yield proxy
        server.shutdown(socket.SHUT_RDWR)


def connect(proxy: Proxy) -> socket.socket:
    before = proxy.connections
    client = socket.create_connection((proxy.listen.host, proxy.listen.port), timeout=20)
    wait_until(lambda: proxy.connections == before + 1)
    return client


def exchange(client: socket.socket, message: bytes) -> bytes:
    client.sendall(message)
    return receive(client, len(message))


def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        data = client.recv(1 << 20)
        assert data, "it has ended"
        received += data
    return received


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(20)


def test_it_delivers_everything_both_ways_and_no_earlier_than_its_delay(tmp_path: Path) -> None:
    one_way_s = 0.05
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "real.1"))
        server.listen()
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with (
            Proxy(f"ipc://{tmp_path}/near", f"ipc://{tmp_path}/real", sockets=(1,), delay_s=one_way_s),
            socket.socket(socket.AF_UNIX) as client,
        ):
            client.connect(str(tmp_path / "near.1"))
            sent = bytes(range(256)) * 8192
            started = time.monotonic()
            threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
            received = b""
            while len(received) < len(sent):
                received += client.recv(1 << 20)
                assert time.monotonic() - started >= 2 * one_way_s
            assert received == sent
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_ends_open_connections_and_serves_later_ones(proxy: Proxy, reset: bool) -> None:
    with connect(proxy) as client, connect(proxy) as other:
        assert exchange(client, b"a") == b"a"
        proxy.cut(reset=reset)
        for each in (client, other):
            if reset:
                with pytest.raises(ConnectionResetError):
                    each.recv(1)
            else:
                assert each.recv(1) == b""
    wait_until(lambda: not proxy.connections)
    with connect(proxy) as client:
        assert exchange(client, b"b") == b"b"


def test_held_bytes_wait_and_arrive_after_release(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.hold()
        client.sendall(b"abc")
        assert is_silent(client)
        with connect(proxy) as other:
            other.sendall(b"def")
            assert is_silent(other), "connections that come meanwhile are held too"
            proxy.release()
            assert receive(client, 3) == b"abc"
            assert receive(other, 3) == b"def"


def test_one_direction_can_be_held_alone(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.hold(to_server=False)
        client.sendall(b"abc")
        assert is_silent(client)
        proxy.hold(to_clients=False)
        assert receive(client, 3) == b"abc", "the server had it, and its answer was on its way"
        client.sendall(b"def")
        assert is_silent(client)


def test_a_stalled_connection_stays_stalled_and_later_ones_work(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.stall()
        proxy.release()
        client.sendall(b"abc")
        assert is_silent(client)
        with connect(proxy) as other:
            assert exchange(other, b"def") == b"def"


def test_a_slow_proxy_carries_its_rate_and_makes_the_sender_wait(proxy: Proxy) -> None:
    proxy.slow(bytes_per_s=2e6)
    sent = bytes(1_000_000)
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
        started = time.monotonic()
        assert receive(client, len(sent)) == sent
        assert time.monotonic() - started >= 0.4
