"""Which key each client id belongs to. Ids are random, but a peer that learns one must still not be able to use it."""

from __future__ import annotations

from collections import defaultdict, deque

from zerobeast.common.errors import RemoteProtocolError

MAX_IDS = 4096  #: remembered per key, so that a client that keeps drawing new ids displaces only its own


class Owners:
    """The first key that used an id owns it until that key has used `MAX_IDS` newer ones."""

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
