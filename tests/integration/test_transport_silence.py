"""Connections of clients that no longer read: the server closes them, so that others can take their place."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from tests.helpers import free_port, wait_until
from zerobeast.common.transport import ClientPort, Context, ServerPort
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.tools.chaos.proxy import Proxy

CLIENT = 7
LARGE = np.zeros(1 << 17, np.uint8)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr("zerobeast.common.transport.sockets.STUCK_MS", 3000)
    near, far = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with Proxy(near, far, sockets=(0, 1)) as proxy:
        yield proxy


@pytest.fixture
def server(context: Context, proxy: Proxy) -> Iterator[ServerPort]:
    with closing(ServerPort(context, Plane.STEPS, str(proxy.target))) as server:
        yield server


@pytest.fixture
def client(context: Context, proxy: Proxy, server: ServerPort) -> Iterator[ClientPort]:
    with closing(ClientPort(context, Plane.STEPS, str(proxy.listen), CLIENT)) as client:
        wait_until(lambda: server.changes().get(CLIENT))
        yield client


def fill(server: ServerPort) -> None:
    """Send until the queue is full, which is soon, since no peer reads."""
    while server.send(Header(Kind.OBS, CLIENT, body=([],)), LARGE):
        pass
    assert server.dropped == 1


def heard(client: ClientPort, slot: int) -> bool:
    """Read everything and return whether a message for this slot was among it."""
    found = False
    while message := client.receive():
        found |= message.header.slot == slot
    return found


def test_a_dead_connection_full_of_replies_does_not_block_the_next_one_for_long(
    proxy: Proxy, server: ServerPort, client: ClientPort
) -> None:
    proxy.stall()
    fill(server)
    client.reopen()
    assert not server.send(Header(Kind.BYE, CLIENT)), "both connections have the same topic"

    def answered() -> bool:
        server.changes()  # libzmq drops a connection once its end has been read, which every server does in each turn
        return server.send(Header(Kind.BYE, CLIENT, slot=1)) and heard(client, slot=1)

    wait_until(answered)


def test_a_client_that_stops_reading_is_disconnected(proxy: Proxy, server: ServerPort, client: ClientPort) -> None:
    proxy.hold(to_server=False)
    fill(server)
    wait_until(lambda: server.changes().get(CLIENT) is False)
    proxy.release()
    wait_until(lambda: (client.receive(), server.changes().get(CLIENT))[1])


def test_a_client_that_is_merely_slow_stays(proxy: Proxy, server: ServerPort, client: ClientPort) -> None:
    proxy.bytes_per_s = 150_000
    for _ in range(5):
        server.send(Header(Kind.OBS, CLIENT, body=([],)), LARGE)
    for _ in range(5):
        wait_until(client.receive)
    assert server.changes() == {}
