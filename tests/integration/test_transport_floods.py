"""What a hostile peer sends costs its own connection, a counter or a turn, and shows it nothing of the others."""

from collections import Counter
from contextlib import ExitStack, closing, suppress
from itertools import count

import pytest
import zmq

from tests.helpers import wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import (
    ClientPort,
    Context,
    ServerPort,
    WeightsPublisher,
    WeightsSubscriber,
    sockets,
    weights,
)
from zerobeast.common.transport.sockets import CURVE_BYTES, MAX_FRAME_BYTES
from zerobeast.common.transport.subscriptions import Subscriptions
from zerobeast.common.wire.messages import Header, Kind, Plane, pack_header, topic
from zerobeast.testing.raw_peer import LONG, REPLIES, REQUESTS, WEIGHTS, RawPeer, message

ME, OTHER = 7, 8
PLANE = Plane.STEPS
WELCOME = Header(Kind.WELCOME, ME, 0, 1, 0, ({},))


@pytest.fixture
def place(endpoint: str) -> Endpoint:
    return Endpoint.parse(endpoint)


def heard(server: ServerPort, client: ClientPort) -> bool:
    """Whether the next reply reaches the client."""
    server.changes()
    server.send(WELCOME)
    return client.receive() is not None


def ended(peer: RawPeer) -> bool:
    """Whether the other side has hung up."""
    peer.socket.settimeout(20.0)
    with suppress(ConnectionError):
        while peer.socket.recv(1 << 16):
            pass
    return True


def test_a_message_of_very_many_frames_takes_several_turns(
    server: ServerPort, place: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_SURPLUS", 10)
    step = pack_header(Header(Kind.STEP, ME, 0, 1, 1))
    with RawPeer(place, REQUESTS, b"PUSH") as peer:
        peer.send(message([step, *[b""] * 95]), message([step]))
        assert wait_until(server.receive)
        turns = 0
        while (following := server.receive()) is None:
            turns += 1
        assert turns >= 9
        assert not following.more


def test_frames_after_a_header_that_takes_none_are_refused(server: ServerPort, place: Endpoint) -> None:
    alone = [Header(Kind.HELLO, ME, body=({},)), Header(Kind.BYE, ME), Header(Kind.RESET, ME)]
    with RawPeer(place, REQUESTS, b"PUSH") as peer:
        peer.send(*(message([pack_header(header), b""]) for header in alone), message([pack_header(alone[1])]))
        assert wait_until(server.receive).header.kind is Kind.BYE
    assert server.refused == {"payload": 3}


@pytest.mark.parametrize("size", [2**31, 2**64 - 1, MAX_FRAME_BYTES + CURVE_BYTES + 1])
@pytest.mark.parametrize(("index", "kind"), [(REQUESTS, b"PUSH"), (REPLIES, b"SUB")])
def test_an_announcement_of_gigabytes_ends_the_connection(
    server: ServerPort, place: Endpoint, size: int, index: int, kind: bytes
) -> None:
    assert server
    with RawPeer(place, index, kind) as peer:
        peer.send(bytes((LONG,)) + size.to_bytes(8))
        assert ended(peer)


def test_a_long_topic_ends_the_connection_as_libzmq_keeps_50_bytes_for_each(
    server: ServerPort, place: Endpoint
) -> None:
    assert server
    with RawPeer(place, REPLIES, b"SUB") as peer:
        peer.send(message([b"\1" + bytes(2000)]))
        assert ended(peer)


def test_a_client_that_subscribes_to_everything_and_reads_nothing_delays_no_other(
    context: Context, endpoint: str, server: ServerPort, place: Endpoint
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, ME)) as client, RawPeer(place, REPLIES, b"SUB") as greedy:
        greedy.send(message([b"\1"]), message([b"\1s"]), message([b"\1" + topic(PLANE, OTHER)]))
        wait_until(lambda: heard(server, client) and server.hears(OTHER))
        payload = bytes(1 << 16)
        for _ in range(500):
            assert server.send(Header(Kind.OBS, ME, 0, 1, 1, ([],)), payload)
            wait_until(client.receive)
        assert server.dropped == 0


def test_a_flood_of_arrivals_is_served_in_several_turns(
    context: Context, endpoint: str, place: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "MAX_ARRIVALS", 5)
    with closing(WeightsPublisher(context, endpoint)) as publisher, RawPeer(place, WEIGHTS, b"SUB") as flood:
        flood.send(*(message([b"\1" + weights.WEIGHTS_TOPIC]) for _ in range(50)))
        wait_until(lambda: publisher.pollable[0].poll(0))
        for _ in range(9):
            assert publisher.pollable[0].poll(1000), "no turn reads more than five"
            publisher.welcome()
        wait_until(lambda: publisher.welcome() or not publisher.pollable[0].poll(100))


def test_messages_that_are_no_subscription_cost_a_weights_subscriber_at_most_a_version(
    context: Context, endpoint: str, place: Endpoint
) -> None:
    with ExitStack() as stack:
        publisher = stack.enter_context(closing(WeightsPublisher(context, endpoint)))
        peer = stack.enter_context(RawPeer(place, WEIGHTS, b"SUB"))
        subscribers = []
        for _ in range(3):
            peer.send(*(message([b"\2"]) for _ in range(5)))
            subscribers.append(stack.enter_context(closing(WeightsSubscriber(context, endpoint))))
        versions, got = count(1), [False] * 3

        def everyone_has_one() -> bool:
            version = next(versions)
            publisher.publish(Header(Kind.WEIGHTS, 0, 0, 5, version, (version, 1, 10, 2, 1)), bytes(10))
            for place, subscriber in enumerate(subscribers):
                got[place] |= subscriber.receive() is not None
            return all(got)

        wait_until(everyone_has_one)


def bye(seq: int, sender: int = ME) -> Header:
    return Header(Kind.BYE, sender, seq=seq)


def sees(server: ServerPort, sender: int) -> bool:
    return sender in server.changes()


@pytest.mark.parametrize(
    "wanted", [b"", b"s", topic(PLANE, ME)[:8], topic(Plane.INFERENCE, ME), topic(PLANE, ME) + b"x"]
)
def test_no_client_gets_the_replies_of_others(
    context: Context, endpoint: str, server: ServerPort, wanted: bytes
) -> None:
    with ExitStack() as stack:
        curious = stack.enter_context(context.socket(zmq.SUB))
        curious.subscribe(wanted)
        curious.connect(Endpoint.parse(endpoint).socket(1))
        wait_until(lambda: server.changes() == {} and server.refused["topic"])
        client = stack.enter_context(closing(ClientPort(context, PLANE, endpoint, ME)))
        wait_until(lambda: sees(server, ME))
        curious.subscribe(topic(PLANE, OTHER))
        wait_until(lambda: sees(server, OTHER))
        server.send(bye(1))
        server.send(bye(1, OTHER))
        assert wait_until(client.receive)
        assert wait_until(lambda: curious.poll(10) and curious.recv()).startswith(topic(PLANE, OTHER))
        assert not curious.poll(0), "its own topic and nothing else"
    departed: list[int] = []
    wait_until(lambda: departed.extend(server.departures()) or len(departed) == 2)
    assert set(departed) == {ME, OTHER}, "what was refused is no departure"


def subscribe(socket: zmq.Socket[bytes], sender: int) -> None:
    """Subscribe to a topic; an XSUB does so by hand and delivers every message, a SUB only those of its topics."""
    wanted = topic(PLANE, sender)
    _ = socket.send(b"\1" + wanted) if socket.type == zmq.XSUB else socket.subscribe(wanted)


@pytest.mark.parametrize("message", [b"", b"\2", b"hello"])
def test_a_message_among_subscriptions_gives_no_client_the_topic_of_another(message: bytes) -> None:
    refused = Counter[str]()

    def refuse(error: RemoteProtocolError) -> None:
        refused[error.reason] += 1

    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        kinds = (zmq.XPUB, zmq.XSUB, zmq.SUB, zmq.XSUB, zmq.SUB)
        replies, curious, victim, accomplice, late = (stack.enter_context(context.socket(kind)) for kind in kinds)
        subscriptions = Subscriptions(replies, PLANE, None, refuse)
        replies.bind("inproc://replies")  # where everything arrives at once and in this order
        curious.connect("inproc://replies")
        curious.send(message)
        for socket, sender in ((victim, ME), (accomplice, OTHER)):
            socket.connect("inproc://replies")
            subscribe(socket, sender)
        subscriptions.read()
        replies.send(topic(PLANE, ME) + b"secret")
        assert refused == {"topic": 1}
        assert not accomplice.poll(0)
        late.connect("inproc://replies")
        subscribe(late, 9)
        subscriptions.read()
        replies.send(topic(PLANE, 9) + b"later")
        assert late.recv(zmq.NOBLOCK) == topic(PLANE, 9) + b"later", "those who come afterwards are heard"
