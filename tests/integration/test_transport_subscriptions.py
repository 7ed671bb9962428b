"""Who hears the replies of a server: each client only its own topic, whatever else it subscribes to."""

from collections import Counter
from contextlib import ExitStack, closing

import pytest
import zmq

from tests.helpers import wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import ClientPort, Context, ServerPort
from zerobeast.common.transport.subscriptions import Subscriptions
from zerobeast.common.wire.messages import Header, Kind, Plane, topic

PLANE = Plane.STEPS
ME, OTHER = 7, 8


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


def test_a_client_that_unsubscribes_has_departed(context: Context, endpoint: str, server: ServerPort) -> None:
    with context.socket(zmq.SUB) as client:
        client.subscribe(topic(PLANE, ME))
        client.connect(Endpoint.parse(endpoint).socket(1))
        assert wait_until(server.changes) == {ME: True}
        client.unsubscribe(topic(PLANE, ME))
        assert wait_until(server.changes) == {ME: False}
    assert server.changes() == {}


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
