"""The only package that imports zmq.

A plane has a server that binds a PULL and an XPUB, and clients that connect a PUSH and a SUB:

    server = ServerPort(context, Plane.INFERENCE, "tcp://*:5555")
    client = ClientPort(context, Plane.INFERENCE, "tcp://broker:5555", sender=random_id())
    client.send(Header(Kind.HELLO, client.sender, body=({},)))
    while message := server.receive():       # None when nothing more is there
        if message.into(rows[i : i + n]):     # the payload, received in place; False if its size is wrong
            server.send(Header(...), reply)
"""

from zerobeast.common.transport.client import ClientPort
from zerobeast.common.transport.context import Context, open_context
from zerobeast.common.transport.incoming import Incoming
from zerobeast.common.transport.keys import Keys, add_key, make_keys
from zerobeast.common.transport.ports import ServerPort
from zerobeast.common.transport.sockets import MAX_FRAME_BYTES, Payload, Poller, index_of, random_id
from zerobeast.common.transport.weights import (
    CHUNK_BYTES,
    NEWS_TOPIC,
    WEIGHTS_TOPIC,
    WeightsPublisher,
    WeightsSubscriber,
    checksum,
    chunks,
)

__all__ = [
    "CHUNK_BYTES",
    "MAX_FRAME_BYTES",
    "NEWS_TOPIC",
    "WEIGHTS_TOPIC",
    "ClientPort",
    "Context",
    "Incoming",
    "Keys",
    "Payload",
    "Poller",
    "ServerPort",
    "WeightsPublisher",
    "WeightsSubscriber",
    "add_key",
    "checksum",
    "chunks",
    "index_of",
    "make_keys",
    "open_context",
    "random_id",
]
