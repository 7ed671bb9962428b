"""What hostile peers do besides sending messages: connections, subscriptions, sessions and HTTP requests."""

import random
import socket
import struct
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport.sockets import CURVE_BYTES, MAX_FRAME_BYTES
from zerobeast.common.wire.messages import Header, Kind, Plane, pack_header, topic
from zerobeast.testing.raw_peer import COMMAND, GREETING, LONG, MORE, REPLIES, REQUESTS, WEIGHTS, RawPeer, frame
from zerobeast_tools.chaos.fuzz_hello import HELLOS

HELLO_ROUNDS, HELLO_PERIOD_S = 3, 0.2
LARGEST = 5  #: largest scale of attacks
NO_TIME = struct.pack("ii", 1, 0)  #: SO_LINGER: hang up with a reset
hung_up = partial(suppress, OSError)  #: the other side may end the connection, which is its right


class AttackTarget(NamedTuple):
    """A service under attack."""

    plane: Plane
    endpoint: Endpoint
    health: tuple[str, int]
    rng: random.Random


def silence(target: AttackTarget, scale: int) -> None:
    """Connections that never send a byte, or stop in the middle of the greeting."""
    with ExitStack() as stack:
        for number in range(20 * scale):
            peer = stack.enter_context(RawPeer(target.endpoint, number % 2))
            if number % 3:
                peer.send(GREETING[: target.rng.randrange(len(GREETING))])


def noise(target: AttackTarget, scale: int) -> None:
    """Bytes that are not ZMTP, before and after its greeting."""
    for number in range(10 * scale):
        for kind in (b"", b"PUSH", b"SUB", b"REQ", b"\xff" * 200):
            with hung_up(), RawPeer(target.endpoint, number % 2, kind) as peer:
                peer.send(target.rng.choice([b"GET / HTTP/1.1\r\n\r\n", target.rng.randbytes(2000), bytes(2000)]))


def giants(target: AttackTarget, scale: int) -> None:
    """Frames, commands and topics of an impossible size."""
    sizes = [2**31, 2**40, 2**63, 2**64 - 1, MAX_FRAME_BYTES + CURVE_BYTES + 1]
    for _ in range(scale):
        for size in sizes:
            for index, kind in ((REQUESTS, b"PUSH"), (REPLIES, b"SUB")):
                with hung_up(), RawPeer(target.endpoint, index, kind) as peer:
                    flags = target.rng.choice([LONG, LONG | MORE, LONG | COMMAND])
                    peer.send(bytes((flags,)) + struct.pack(">Q", size), target.rng.randbytes(100))
        with hung_up(), RawPeer(target.endpoint, REPLIES, b"SUB") as peer:
            peer.say([b"\1" + target.rng.randbytes(100_000)])


def millions(target: AttackTarget, scale: int) -> None:
    """A message of very many frames, and one that never ends."""
    with hung_up(), RawPeer(target.endpoint, REQUESTS, b"PUSH") as peer:
        for _ in range(scale):
            peer.send(frame(b"\xc1", MORE) * 100_000)
        peer.send(frame(b""))
    with hung_up(), RawPeer(target.endpoint, REQUESTS, b"PUSH") as peer:
        peer.send(frame(bytes(8 << 20), MORE))


def eavesdrop(target: AttackTarget, scale: int) -> None:
    """Subscriptions to all clients' replies that are never read, cancellations of others', and garbage."""
    letter, rng = target.plane.value, target.rng
    topics = [b"", letter, letter + bytes(4), topic(target.plane, 5) + b"x", b"\xff" * 9, topic(Plane.WEIGHTS, 0)]
    with ExitStack() as stack, hung_up():
        for _ in range(scale):
            peer = stack.enter_context(RawPeer(target.endpoint, REPLIES, b"SUB"))
            peer.say(*([b"\1" + one] for one in topics))
            peer.say(*([b"\0" + topic(target.plane, rng.randrange(2**63))] for _ in range(100)))
            peer.say(*([b"\1" + topic(target.plane, rng.randrange(2**63))] for _ in range(1000)))
            peer.say(*([rng.randbytes(rng.randrange(20))] * rng.randrange(1, 4) for _ in range(100)))
        time.sleep(1.0)


def hoard(target: AttackTarget, scale: int) -> None:
    """Weights for subscribers that never read them, and a flood of subscriptions to them."""
    if target.plane is not Plane.ROLLOUTS:
        return
    with ExitStack() as stack, hung_up():
        for _ in range(5 * scale):
            peer = stack.enter_context(RawPeer(target.endpoint, WEIGHTS, b"SUB"))
            peer.say([b"\1"], [b"\1" + topic(Plane.WEIGHTS, 0)], [b"\2"])
        peer.say(*([target.rng.choice([b"\0", b"\1"]) + topic(Plane.WEIGHTS, 0)] for _ in range(2000)))
        time.sleep(1.0)


def half_open(target: AttackTarget, scale: int) -> None:
    """Clients that send nothing but HELLO; half of them are not even subscribed to the answer."""
    many = (1000 if target.plane is Plane.STEPS else 4000) * scale // LARGEST
    senders = [target.rng.randrange(1, 2**63) for _ in range(many)]
    with ExitStack() as stack, hung_up():
        mouth = stack.enter_context(RawPeer(target.endpoint, REQUESTS, b"PUSH"))
        ear = stack.enter_context(RawPeer(target.endpoint, REPLIES, b"SUB"))
        ear.say(*([b"\1" + topic(target.plane, sender)] for sender in senders[::2]))
        for _ in range(HELLO_ROUNDS):
            time.sleep(HELLO_PERIOD_S)
            for sender in senders:
                mouth.say([pack_header(Header(Kind.HELLO, sender, body=(HELLOS[target.plane],)))])


def http(target: AttackTarget, scale: int) -> None:
    """Requests that never end, lines that never end, requests whose answers are not read."""
    rng = target.rng
    with ExitStack() as stack, hung_up():
        for _ in range(40 * scale):
            request = rng.choice(
                [b"GET /hea", b"G" * 70_000, b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 200, rng.randbytes(500), b""]
            )
            visit = stack.enter_context(socket.create_connection(target.health, timeout=30.0))
            with hung_up():
                visit.sendall(request)
    for _ in range(20 * scale):
        with hung_up(), socket.create_connection(target.health, timeout=30.0) as visit:
            visit.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            visit.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_TIME)


ATTACKS = (silence, noise, giants, millions, eavesdrop, hoard, half_open, http)
