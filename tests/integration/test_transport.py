"""Ports over real sockets: how messages arrive, whole and in place, and what a bad one costs."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import numpy as np
import pytest
import zmq

from tests.helpers import wait_until
from tests.integration.ports import bound_again, meet
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, LocalProtocolError
from zerobeast.common.transport import ClientPort, Context, Poller, ServerPort, WeightsPublisher, sockets
from zerobeast.common.wire.layout import RecordSpec
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason, pack_header

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
