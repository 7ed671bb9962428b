"""Ports over real sockets: how messages arrive, what a bad one costs, which client hears what, and who left."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import zmq

from tests.helpers import free_port, wait_until
from tests.integration.ports import bound_again, meet
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, LocalProtocolError
from zerobeast.common.transport import ClientPort, Context, Poller, ServerPort, WeightsPublisher, ports, sockets
from zerobeast.common.wire.layout import RecordSpec
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason, pack_header, topic
from zerobeast_tools.chaos.proxy import Proxy

ME = 7
SPEC = RecordSpec.of(obs=("|u1", (5, 3)), reward=("<f4", ()), first=("|b1", ()))
HELLO = Header(Kind.HELLO, ME, body=({},))


def step(seq: int, sender: int = ME) -> Header:
    return Header(Kind.STEP, sender, 0, 1, seq, (None,))


def rows(n: int, value: int = 1) -> np.ndarray:
    filled = np.zeros(n, SPEC.dtype)
    for name in SPEC.dtype.names or ():
        filled[name] = value
    return filled


@pytest.fixture
def client(context: Context, endpoint: str, server: ServerPort) -> Iterator[ClientPort]:
    with closing(ClientPort(context, Plane.STEPS, endpoint, ME)) as port:
        meet(server, port)
        yield port


def test_rows_are_received_in_place_into_a_part_of_a_batch(client: ClientPort, server: ServerPort) -> None:
    batch = rows(8, 9)
    assert client.send(step(1), rows(3))
    message = wait_until(server.receive)
    assert message.header == step(1)
    assert message.into(batch[2:5])
    np.testing.assert_array_equal(batch["reward"], [9, 9, 1, 1, 1, 9, 9, 9])
    np.testing.assert_array_equal(batch["obs"][:, 4, 2], [9, 9, 1, 1, 1, 9, 9, 9])
    assert not message.more
    assert not message.into(batch), "there is no further frame"
    client.send(step(2), np.zeros((4, 0), np.float32))
    assert wait_until(server.receive).into(np.zeros((2, 0), np.float32)), "an empty frame is one"


def test_a_payload_of_another_size_or_number_of_frames_is_refused(client: ClientPort, server: ServerPort) -> None:
    sizes: list[list[Any]] = [[rows(n)] for n in (0, 1, 2, 4)]
    for frames in [*sizes, [], [b"x"], [rows(3), b""], [rows(3), rows(3), rows(3)]]:
        wait_until(lambda: client.send(step(1), *frames))  # noqa: B023
        wait_until(lambda: client.send(step(2), rows(3)))
        assert not wait_until(server.receive).into(rows(3))
        following = wait_until(server.receive)
        assert following.header == step(2)
        assert following.into(rows(3))


def test_a_message_that_is_not_read_to_its_end_does_not_spoil_the_next(client: ClientPort, server: ServerPort) -> None:
    for seq in (1, 2, 3):
        client.send(step(seq), rows(3), rows(3), b"more")
    assert wait_until(server.receive).header == step(1)
    second = wait_until(server.receive)
    assert second.header == step(2)
    assert second.into(rows(3), last=False)
    assert wait_until(server.receive).frames() == [rows(3).tobytes(), rows(3).tobytes(), b"more"]
    assert server.receive() is None


def test_an_oversized_frame_costs_its_sender_the_connection_and_disturbs_no_other(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_FRAME_BYTES", 1 << 16)
    with ExitStack() as stack:
        server = stack.enter_context(closing(ServerPort(context, Plane.STEPS, endpoint)))
        client = stack.enter_context(closing(ClientPort(context, Plane.STEPS, endpoint, ME)))
        push = stack.enter_context(context.socket(zmq.PUSH))  # may send anything
        push.set(zmq.LINGER, 0)
        push.connect(Endpoint.parse(endpoint).socket(0))
        meet(server, client)
        push.send_multipart([pack_header(step(1)), bytes(1 << 17)])
        client.send(step(2), rows(2))
        assert wait_until(server.receive).header == step(2)
        wait_until(lambda: push.send(pack_header(step(3)), zmq.NOBLOCK) is None)
        assert wait_until(server.receive).header == step(3), "the sender is back over a new connection"
        for port in (client, server):
            with pytest.raises(LocalProtocolError):
                port.send(HELLO, bytes((1 << 16) + 1))


def test_a_refusal_is_an_error_message_that_repeats_the_request(client: ClientPort, server: ServerPort) -> None:
    server.error(Header(Kind.STEP, ME, 4, 9, 8), Reason.UNKNOWN_SESSION, "send HELLO " * 1000, epoch=55)
    header = wait_until(client.receive).header
    assert (header.kind, header.slot, header.epoch, header.seq) == (Kind.ERROR, 4, 55, 8)
    assert header.body[0] == Reason.UNKNOWN_SESSION
    assert len(header.body[1]) == 2000


def test_a_poller_wakes_for_each_port_and_not_without_reason(client: ClientPort, server: ServerPort) -> None:
    poller = Poller([server])
    assert server.departures() == [], "subscriptions wake it too, until they are read"
    assert not poller.wait(0.0)
    client.send(HELLO)
    assert poller.wait(20.0)
    assert wait_until(server.receive).header == HELLO
    assert not Poller([client]).wait(0.0)
    server.send(HELLO)
    assert Poller([server, client]).wait(float("inf"))


@pytest.mark.parametrize(
    ("kind", "taken"), [(partial(ServerPort, plane=Plane.STEPS), sockets.REPLIES), (WeightsPublisher, sockets.WEIGHTS)]
)
def test_an_endpoint_in_use_is_refused_in_words_and_nothing_of_it_is_kept(
    context: Context, endpoint: str, kind: Callable[..., ServerPort | WeightsPublisher], taken: int
) -> None:
    with context.socket(zmq.PULL) as other:
        other.bind(Endpoint.parse(endpoint).socket(taken))
        with pytest.raises(ConfigError):
            kind(context, endpoint=endpoint)
    bound_again(lambda: kind(context, endpoint=endpoint)).close()


def test_an_endpoint_that_is_not_ours_is_refused_in_words() -> None:
    context = Context(insecure=True)
    for text in ("ipc:///no/such/folder/s", "tcp://192.0.2.1:5555"):
        with pytest.raises(ConfigError):
            ServerPort(context, Plane.STEPS, text)
    context.term()


def test_a_poller_without_sockets_waits_as_long_as_asked() -> None:
    before = time.monotonic()
    assert not Poller().wait(0.05)
    assert time.monotonic() - before >= 0.05, "a loop around it would spin, and keep other threads from running"


PLANE = Plane.STEPS


def answer(sender: int, seq: int) -> Header:
    return Header(Kind.OBS, sender, 0, 1, seq, ([],))


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
            while client.send(Header(Kind.STEP, 1, 0, 1), payload):
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
