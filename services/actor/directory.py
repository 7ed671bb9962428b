"""Which addresses the name of a plane's servers has, and which of them each env group uses. No sockets, no clock.

A name with several addresses stands for several servers: replicas of a compose service, pods behind a headless one. The
env groups of an actor spread over them evenly, and each actor counts from a place of its own, so that independent
actors spread evenly too. A group stays where it is unless its server leaves or falls silent, or the groups of this
actor have become uneven by more than one. Groups avoid a server that one of them has left until the name has dropped
it, or `forgive` is called.
"""

from collections.abc import Sequence

Address = str  #: an endpoint whose host is an IP address, or an ipc path


class Directory:
    """The addresses of one plane and the choices of an actor's groups.

    Args:
      slots: number of env groups.
      first: where this actor starts to count.
      spread: whether groups may use any of the servers; otherwise each stays with the one of its number, wherever
        that is: learners that learn as one have to get the rollouts of a group in one place.
    """

    def __init__(self, slots: int, first: int, *, spread: bool) -> None:
        self.addresses: tuple[Address, ...] = ()
        self.choice: dict[int, Address] = {}
        self._avoided: set[Address] = set()
        self._slots, self._first, self._spread = slots, first, spread

    def update(self, addresses: Sequence[Address]) -> dict[int, Address]:
        """Take the addresses that the name has now; returns the groups that change to another, and which one."""
        self.addresses = tuple(sorted(addresses)) if self._spread else tuple(addresses)
        if not self.addresses:
            return {}
        self._avoided &= set(self.addresses)
        before = dict(self.choice)
        for slot in range(self._slots):
            self.choice.setdefault(slot, self._own(slot))
        if self._spread:
            self._balance()
        return {slot: address for slot, address in self.choice.items() if before.get(slot) != address}

    def elsewhere(self, slot: int) -> Address | None:
        """Choose another address for a group whose server has left; None if there is no other."""
        left = self.choice.get(slot)
        if not self._spread:
            self.choice[slot] = self._own(slot)
            return None if self.choice[slot] == left else self.choice[slot]
        others = [address for address in self._ring(left) if address != left]
        if left:
            self._avoided.add(left)
        if not others:
            return None
        users = self._users()
        self.choice[slot] = min(others, key=lambda address: (address in self._avoided, users[address]))
        return self.choice[slot]

    def forgive(self) -> None:
        """Stop avoiding servers that groups have left."""
        self._avoided.clear()

    def _own(self, slot: int) -> Address:
        return self.addresses[(self._first + slot) % len(self.addresses)]

    def _ring(self, start: Address | None) -> tuple[Address, ...]:
        """The addresses from `start` on, so that groups of different servers do not all move to one."""
        at = self.addresses.index(start) if start in self.addresses else 0
        return self.addresses[at:] + self.addresses[:at]

    def _balance(self) -> None:
        while good := {address: n for address, n in self._users().items() if address not in self._avoided}:
            few, many = min(good, key=good.__getitem__), max(good, key=good.__getitem__)
            if good[many] - good[few] < 2:
                return
            self.choice[max(slot for slot, address in self.choice.items() if address == many)] = few

    def _users(self) -> dict[Address, int]:
        """How many groups use each address that the name has."""
        chosen = list(self.choice.values())
        return {address: chosen.count(address) for address in self.addresses}
