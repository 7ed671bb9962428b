"""The only package that imports zmq.

A plane has a server that binds a PULL and an XPUB, and clients that connect a PUSH and a SUB:

    server = ServerPort(context, Plane.INFERENCE, "tcp://*:5555")
    client = ClientPort(context, Plane.INFERENCE, "tcp://broker:5555", sender=random_id())
    client.send(Header(Kind.HELLO, client.sender, body=({},)))
    while message := server.receive():       # None when nothing more is there
        if message.into(rows[i : i + n]):     # the payload, received in place; False if its size is wrong
            server.send(Header(...), reply)
"""

from zerobeast.common.transport.context import Context as Context
from zerobeast.common.transport.context import open_context as open_context
from zerobeast.common.transport.keys import Keys as Keys
from zerobeast.common.transport.keys import add_key as add_key
from zerobeast.common.transport.keys import make_keys as make_keys
from zerobeast.common.transport.ports import ClientPort as ClientPort
from zerobeast.common.transport.ports import ServerPort as ServerPort
from zerobeast.common.transport.sockets import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from zerobeast.common.transport.sockets import Incoming as Incoming
from zerobeast.common.transport.sockets import Poller as Poller
from zerobeast.common.transport.sockets import index_of as index_of
from zerobeast.common.transport.sockets import random_id as random_id
from zerobeast.common.transport.weights import CHUNK_BYTES as CHUNK_BYTES
from zerobeast.common.transport.weights import NEWS_TOPIC as NEWS_TOPIC
from zerobeast.common.transport.weights import WEIGHTS_TOPIC as WEIGHTS_TOPIC
from zerobeast.common.transport.weights import WeightsPublisher as WeightsPublisher
from zerobeast.common.transport.weights import WeightsSubscriber as WeightsSubscriber
from zerobeast.common.transport.weights import checksum as checksum
from zerobeast.common.transport.weights import chunks as chunks
