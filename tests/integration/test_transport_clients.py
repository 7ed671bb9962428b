"""Several clients of one server: who hears what, who left, who came back, and who does not read."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial

import numpy as np
import pytest
import zmq

from tests.helpers import free_port, wait_until
from tests.integration.ports import bound_again, meet
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport import ClientPort, Context, ServerPort, ports
from zerobeast.common.wire.messages import Header, Kind, Plane, topic
from zerobeast_tools.chaos.proxy import Proxy

PLANE = Plane.STEPS


def answer(sender: int, seq: int) -> Header:
    return Header(Kind.OBS, sender, 0, 1, seq, ([],))


def step(sender: int, seq: int) -> Header:
    return Header(Kind.STEP, sender, 0, 1, seq)


def heard(client: ClientPort, last: int) -> list[int]:
    """Sequence numbers of the answers up to `last`."""
    seqs: list[int] = []

    def done() -> bool:
        while message := client.receive():
            assert message.header.sender == client.sender
            seqs.append(message.header.seq)
        return last in seqs

    wait_until(done)
    return seqs


def test_a_client_that_closes_has_departed_once_and_one_that_reopens_has_not(
    context: Context, endpoint: str, server: ServerPort
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, 1)) as client:
        leaving = ClientPort(context, PLANE, endpoint, 2)
        assert not server.hears(2)
        meet(server, client)
        meet(server, leaving)
        assert server.departures() == []
        server.send(answer(1, 1), b"half", b"read")
        assert wait_until(client.receive)
        client.reopen()
        assert client.receive() is None, "what was half read is gone with the old socket"
        meet(server, client)
        leaving.close()
        assert 2 in wait_until(server.departures)
        assert server.departures() == []
        assert (server.hears(1), server.hears(2)) == (True, False)
        server.send(answer(1, 3))
        assert heard(client, 3) == [3]


def test_a_client_that_is_still_there_over_another_connection_has_not_departed(
    context: Context, endpoint: str, server: ServerPort
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, 1)) as client, closing(ClientPort(context, PLANE, endpoint, 2)):
        with context.socket(zmq.SUB) as old:
            old.subscribe(topic(PLANE, 1))
            old.subscribe(topic(PLANE, 3))
            old.connect(Endpoint.parse(endpoint).socket(1))
            meet(server, client)
            wait_until(lambda: server.departures() == [] and server.send(answer(3, 1)) and old.poll(10))
        assert wait_until(server.departures) == [3], "the old connection has ended, but only 3 had no other"
        server.send(answer(1, 5))
        assert heard(client, 5) == [5]


def test_requests_to_a_server_that_does_not_read_end_in_a_refusal_to_queue(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("SEND_HWM", "RECEIVE_HWM"):
        monkeypatch.setattr(ports, limit, 2)
    with ExitStack() as stack:
        server = stack.enter_context(closing(ServerPort(context, PLANE, endpoint)))
        client = stack.enter_context(closing(ClientPort(context, PLANE, endpoint, 1)))
        meet(server, client)
        payload = bytes(1 << 20)
        sent = refused_in_a_row = 0

        def stuck() -> bool:
            nonlocal sent, refused_in_a_row
            while client.send(step(1, 0), payload):
                sent, refused_in_a_row = sent + 1, 0
                assert sent < 10_000, "memory would grow without bound"
            refused_in_a_row += 1
            return refused_in_a_row == 50

        wait_until(stuck)
        for _ in range(sent):
            assert wait_until(server.receive).frames() == [payload]


def test_a_server_with_an_epoch_sends_here_once_to_each_client_that_connects_whenever_it_starts(
    context: Context, endpoint: str
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, 1)) as client:
        assert not client.send(Header(Kind.HELLO, 1, body=({},))), "what cannot leave is not queued"
        for epoch in (5, 6):
            with closing(bound_again(partial(ServerPort, context, PLANE, endpoint, epoch=epoch))) as server:
                came: list[dict[int, bool]] = []
                message = wait_until(lambda server=server, came=came: came.append(server.changes()) or client.receive())
                assert (message.header, message.more) == (Header(Kind.HERE, 1, 0, epoch), False)
                assert [changes for changes in came if changes] == [{1: True}]
                meet(server, client)
                assert server.changes() == {}
                assert client.receive() is None


def test_a_flood_of_garbage_does_not_block_the_loop_of_a_server(context: Context, server: ServerPort) -> None:
    with context.socket(zmq.PUSH) as flood:
        flood.set(zmq.LINGER, 0)
        flood.connect(server.pollable[0].get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())

        def refused(at_least: int) -> bool:
            with suppress(zmq.Again):
                while True:
                    flood.send(b"garbage", zmq.NOBLOCK)
            before = server.refused.total()
            assert server.receive() is None
            assert server.refused.total() - before <= ports.MAX_PER_CALL
            return server.refused.total() >= at_least

        wait_until(lambda: refused(2 * ports.MAX_PER_CALL))


CLIENT = 7
LARGE = np.zeros(1 << 17, np.uint8)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr("zerobeast.common.transport.sockets.STUCK_MS", 3000)
    near, far = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with Proxy(near, far, sockets=(0, 1)) as proxy:
        yield proxy


@pytest.fixture
def far(context: Context, proxy: Proxy) -> Iterator[ServerPort]:
    with closing(ServerPort(context, Plane.STEPS, str(proxy.target))) as far:
        yield far


@pytest.fixture
def near(context: Context, proxy: Proxy, far: ServerPort) -> Iterator[ClientPort]:
    with closing(ClientPort(context, Plane.STEPS, str(proxy.listen), CLIENT)) as near:
        wait_until(lambda: far.changes().get(CLIENT))
        yield near


def fill(far: ServerPort) -> None:
    """Send until the queue is full, which is soon, since no peer reads."""
    while far.send(Header(Kind.OBS, CLIENT, body=([],)), LARGE):
        pass
    assert far.dropped == 1


def hear_again(far: ServerPort, near: ClientPort) -> None:
    """Send for a slot until the client hears it."""

    def answered() -> bool:
        far.changes()  # libzmq drops a connection once its end has been read, which every server does in each turn
        return far.send(Header(Kind.BYE, CLIENT, slot=1)) and any([one.header.slot for one in iter(near.receive, None)])

    wait_until(answered)


def test_a_dead_connection_full_of_replies_does_not_block_the_next_one_for_long(
    proxy: Proxy, far: ServerPort, near: ClientPort
) -> None:
    proxy.stall()
    fill(far)
    near.reopen()
    assert not far.send(Header(Kind.BYE, CLIENT)), "both connections have the same topic"
    hear_again(far, near)


def test_a_client_that_stops_reading_is_disconnected(proxy: Proxy, far: ServerPort, near: ClientPort) -> None:
    proxy.hold(to_server=False)
    fill(far)
    wait_until(lambda: far.changes().get(CLIENT) is False)
    proxy.release()
    wait_until(lambda: (near.receive(), far.changes().get(CLIENT))[1])


def test_a_client_that_is_merely_slow_stays(proxy: Proxy, far: ServerPort, near: ClientPort) -> None:
    proxy.bytes_per_s = 150_000
    for _ in range(5):
        far.send(Header(Kind.OBS, CLIENT, body=([],)), LARGE)
    for _ in range(5):
        wait_until(near.receive)
    assert far.changes() == {}


@pytest.mark.parametrize("reset", [True, False])
def test_a_connection_that_is_cut_is_made_anew(proxy: Proxy, far: ServerPort, near: ClientPort, *, reset: bool) -> None:
    proxy.cut(reset=reset)
    hear_again(far, near)
