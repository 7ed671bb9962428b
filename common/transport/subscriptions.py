"""Which client receives a server's replies: each gets its own topic and nothing else.

By itself an XPUB grants any subscription, even to the empty topic, which is every reply to every client. Here each
subscription is checked first. With keys it has to come from the holder of the key that the client id belongs to;
without keys, only a peer that has the 63 random bits of a topic can subscribe to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress

import zmq

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.messages import Plane, sender_of

MAX_EVENTS = 4096  #: read in one call: a flood must not keep a service from its loop
MAX_CLIENTS = 1 << 16  #: that may receive replies, with or without a session


class Subscriptions:
    """The subscriptions of an XPUB.

    They are counted per client: one that reconnects subscribes again before its old connection is known to have ended.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        plane: Plane,
        owners: Owners | None,
        refuse: Callable[[RemoteProtocolError], None],
    ) -> None:
        socket.set(zmq.XPUB_MANUAL, 1)  # from here on it grants nothing by itself
        self._socket = socket
        self._plane = plane
        self._owners = owners  #: of client ids; None if connections have no keys
        self._refuse = refuse
        self._held: Counter[int] = Counter()
        self._changes: dict[int, bool] = {}
        self._blurred = False

    def changes(self) -> dict[int, bool]:
        """Clients that came or went since the last call, and whether they are here now."""
        self.read()
        changes, self._changes = self._changes, {}
        return changes

    def has(self, sender: int) -> bool:
        """Whether a reply to this client would reach it."""
        return sender in self._held

    def read(self) -> None:
        """Take the events that have arrived."""
        for _ in range(MAX_EVENTS):
            try:
                event = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._blurred = False
                return
            try:
                self._take(event)
            except RemoteProtocolError as error:
                self._refuse(error)

    def _take(self, event: zmq.Frame) -> None:
        data = event.bytes
        if data[:1] not in (b"\0", b"\1"):
            # `set(SUBSCRIBE)` applies to the connection of the newest event, but libzmq 4.3.5 does not count other
            # messages as events: until all is read, it could apply to another client's.
            self._blurred = True
            raise RemoteProtocolError("something else than a subscription came for the replies", "topic")
        comes, topic = data[:1] == b"\1", data[1:]
        sender = sender_of(topic)
        if sender is None or topic[:1] != self._plane.value:
            if comes:
                raise RemoteProtocolError("a client subscribes to its own topic alone", "topic")
            return
        if comes:
            self._hold(sender)  # even if it is refused below: its end will be reported in the same way
        self._check(sender, event)
        if not comes:
            self._held[sender] -= 1
        elif not self._blurred:
            self._socket.set(zmq.SUBSCRIBE, topic)
        self._changes[sender] = self._held[sender] > 0
        if not self._changes[sender]:
            del self._held[sender]

    def _hold(self, sender: int) -> None:
        if sender not in self._held and len(self._held) >= MAX_CLIENTS:
            raise RemoteProtocolError(f"{MAX_CLIENTS} clients listen already", "busy")
        self._held[sender] += 1

    def _check(self, sender: int, event: zmq.Frame) -> None:
        """Raise RemoteProtocolError if the event comes from a peer other than the owner of the id."""
        if self._owners is not None:
            with suppress(zmq.ZMQError):  # it has no sender: libzmq reports that a connection has ended
                self._owners.check(sender, str(event.get("User-Id")))


MAX_IDS = 4096  #: kept per key, so that a client that keeps drawing new ids displaces only its own


class Owners:
    """The first key that used an id owns it until that key has used `MAX_IDS` newer ones.

    Ids are random, but a peer that learns one must still not be able to use it.
    """

    def __init__(self) -> None:
        self._key_of: dict[int, str] = {}
        self._ids_of: defaultdict[str, deque[int]] = defaultdict(deque)

    def check(self, sender: int, key: str) -> None:
        """Assign a new id to this key.

        Raises:
          RemoteProtocolError: the id belongs to another key.
        """
        owner = self._key_of.get(sender)
        if owner == key:
            return
        if owner is not None:
            raise RemoteProtocolError(f"the holder of {key} uses the id of another client", "sender")
        self._key_of[sender] = key
        self._ids_of[key].append(sender)
        if len(self._ids_of[key]) > MAX_IDS:
            del self._key_of[self._ids_of[key].popleft()]
