"""Which key each client id belongs to. An id is drawn at random; a peer that learns it shall still not speak for it."""

from __future__ import annotations

from collections import defaultdict, deque

from zerobeast.common.errors import RemoteProtocolError

MAX_IDS = 4096  #: remembered of one key, so that a client that draws ever new ones displaces only its own


class Owners:
    """The first key that used an id owns it, for as long as the server runs."""

    def __init__(self) -> None:
        self._key_of: dict[int, str] = {}
        self._ids_of: defaultdict[str, deque[int]] = defaultdict(deque)

    def check(self, sender: int, key: str) -> None:
        """Make an id that is new this key's own.

        Raises:
          RemoteProtocolError: it is another's.
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
