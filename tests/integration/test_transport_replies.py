"""How a client handles replies that no honest server sends."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import zmq

from tests.helpers import wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import VersionMismatch
from zerobeast.common.transport import ClientPort, Context
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, Plane, pack_header, topic

ME = 7
ANSWER = Header(Kind.OBS, ME, 0, 1, 1, ([], None))


@pytest.fixture
def publisher(context: Context, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """A server's socket for replies, which sends whatever it is told to."""
    with context.socket(zmq.XPUB) as socket:
        socket.set(zmq.LINGER, 0)
        socket.bind(Endpoint.parse(endpoint).socket(1))
        yield socket


@pytest.fixture
def client(context: Context, endpoint: str, publisher: zmq.Socket[bytes]) -> Iterator[ClientPort]:
    with closing(ClientPort(context, Plane.STEPS, endpoint, ME)) as port:
        assert publisher.recv() == b"\1" + topic(Plane.STEPS, ME)
        yield port


def said(entries: list[Any]) -> bytes:
    return topic(Plane.STEPS, ME) + msgpack.packb(entries)


def test_replies_that_are_garbled_or_for_others_are_counted_and_the_next_is_taken(
    publisher: zmq.Socket[bytes], client: ClientPort
) -> None:
    others = [replace(ANSWER, sender=sender) for sender in (0, ME + 1)]
    of_other_planes = [
        Header(Kind.ACT, ME, 0, 1, 1, (4,)),
        Header(Kind.ACK, ME, 0, 1, 1, (1, 1)),
        Header(Kind.STEP, ME),
    ]
    for header in (b"", b"\xc1", *map(pack_header, [*others, *of_other_planes, ANSWER])):
        publisher.send_multipart([topic(Plane.STEPS, ME) + header, b"x"])
    message = wait_until(client.receive)
    assert message.header == ANSWER
    assert client.refused == {"header": 2, "sender": 2, "kind": 3}


def test_unreadable_replies_are_counted_until_a_readable_one_arrives(
    publisher: zmq.Socket[bytes], client: ClientPort
) -> None:
    for _ in range(3):
        publisher.send(said([1, 99]))
    wait_until(lambda: client.receive() or client.malformed == 3)
    publisher.send_multipart([topic(Plane.STEPS, ME) + pack_header(ANSWER), b"x"])
    assert wait_until(client.receive)
    assert client.malformed == 0


def test_a_server_of_another_version_is_an_error_of_its_own(publisher: zmq.Socket[bytes], client: ClientPort) -> None:
    for sender in (0, ME):
        publisher.send(said([PROTOCOL_VERSION + 1, 2, sender]))
    with pytest.raises(VersionMismatch, match=f"version {PROTOCOL_VERSION + 1}, this process uses {PROTOCOL_VERSION}$"):
        wait_until(client.receive)
    assert client.refused == {"sender": 1}
