"""The connections of one plane: a port to each server that an env group uses, and the moves between servers."""

from collections import Counter
from collections.abc import Iterator

from zerobeast.common.errors import PeerLost, Refusal, RemoteProtocolError
from zerobeast.common.transport import ClientPort, Context, Incoming
from zerobeast.common.transport.lookup import Lookup, Lookups
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.services.actor.directory import Address, Directory
from zerobeast.services.actor.waits import TIMEOUTS, Timeouts

LINGER_MS = 200  #: for BYE to be sent


class Servers:
    """The servers of an actor's groups on one plane: `lookup` resolves their name, which may stand for several.

    `slots` and `first` are those of `Directory`: groups spread over all servers, but stay with their learner.
    """

    def __init__(
        self, plane: Plane, lookup: Lookup | Lookups, sender: int, slots: int, first: int, timeouts: Timeouts = TIMEOUTS
    ) -> None:
        self.plane = plane
        self._sender = sender
        self._directory = Directory(slots, first, spread=plane is not Plane.ROLLOUTS)
        self._timeouts = timeouts
        self._lookup = lookup
        self._lookup_at = float("-inf")
        self._forgive_at = float("-inf")
        self._using: dict[int, Address] = {}  #: the choices that ports are open for
        self.ports: dict[Address, ClientPort] = {}
        self.lost: PeerLost | None = None  #: why no server is known
        self._refused: Counter[Refusal] = Counter()  #: by ports that were closed

    @property
    def refused(self) -> Counter[Refusal]:
        """Malformed replies so far, by reason."""
        return sum((port.refused for port in self.ports.values()), self._refused)

    def port_of(self, slot: int) -> ClientPort | None:
        """The port to a group's server, None while none is known."""
        return self.ports.get(self._using.get(slot, ""))

    def refresh(self, now: float) -> list[int]:
        """Look up the name when it is time; returns groups that have to change their server.

        Until `connect` they can still send BYE to the old one.
        """
        if now >= self._lookup_at:
            self._lookup_at = now + (self._timeouts.lookup if self.ports else self._timeouts.retry_lookup)
            self._lookup.start()
        try:
            found = self._lookup.take()
        except PeerLost as error:
            self.lost = error
            return []
        if not found:
            return []
        if now >= self._forgive_at:
            self._forgive_at = now + self._timeouts.forgive
            self._directory.forgive()
        self.lost = None
        changed = self._directory.update([str(place) for place in found])
        return [slot for slot in changed if slot in self._using]

    def elsewhere(self, slot: int, now: float) -> bool:
        """Choose another server for a group; False if there is no other."""
        self._forgive_at = now + self._timeouts.forgive
        return self._directory.elsewhere(slot) is not None

    def connect(self, context: Context) -> bool:
        """Open and close connections to match the choices; returns whether anything changed."""
        if self._using == self._directory.choice:
            return False
        self._using = dict(self._directory.choice)
        used = set(self._using.values())
        for address in used - self.ports.keys():
            self.ports[address] = ClientPort(context, self.plane, address, self._sender, linger_ms=LINGER_MS)
        for address in self.ports.keys() - used:
            port = self.ports.pop(address)
            self._refused += port.refused
            port.close()
        return True

    def receive(self) -> Iterator[tuple[ClientPort, Incoming]]:
        """Messages from the servers that groups use; one for all slots is repeated for each group of that server."""
        for port in self.ports.values():
            while message := port.receive():
                slot = message.header.slot
                if message.header.kind is Kind.HERE:
                    yield from ((port, message.to(slot)) for slot in self._using if self.port_of(slot) is port)
                elif slot not in self._using:
                    port.refuse(RemoteProtocolError(f"slot {slot} of {len(self._using)}", "slot"))
                elif self.port_of(slot) is port:
                    yield port, message

    def close(self) -> None:
        for port in self.ports.values():
            port.close()
        self.ports = {}
