"""Look up a server's name outside the loop: it may take seconds, during which all other conversations would stall."""

import logging
import threading
from collections.abc import Callable, Sequence

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import PeerLost

log = logging.getLogger(__name__)

Resolve = Callable[[Endpoint], list[Endpoint]]  #: the addresses of a name now; raises PeerLost if it does not resolve


class Lookup:
    """Looks up one endpoint, and logs a line whenever its name resolves differently than before.

    Raises:
      ConfigError: the endpoint is malformed, or "*", which a client cannot connect to.
    """

    def __init__(self, endpoint: str, resolve: Resolve = Endpoint.addresses) -> None:
        self._place = Endpoint.parse(endpoint)
        self._resolve = resolve
        self._place.refuse_wildcard()
        self._found: list[Endpoint] | PeerLost | None = None
        self._thread: threading.Thread | None = None
        self._meaning = ""

    def start(self) -> None:
        """Begin a lookup, unless one is under way. An endpoint that is not a name is found at once."""
        if self._thread is not None and self._thread.is_alive():
            return
        if not self._place.is_name:
            self._found = [self._place]
            return
        self._thread = threading.Thread(target=self._look, name="lookup", daemon=True)  # it must not hold up an exit
        self._thread.start()

    def take(self) -> list[Endpoint] | None:
        """The result of the newest lookup, returned once; None if there is nothing new.

        Raises:
          PeerLost: the name does not resolve.
        """
        found, self._found = self._found, None
        if isinstance(found, PeerLost):
            raise found
        return found

    def _look(self) -> None:
        found: list[Endpoint] | PeerLost
        try:
            found = self._resolve(self._place)
            meaning = f"{self._place} is {', '.join(sorted(map(str, found)))}"
        except PeerLost as error:
            found, meaning = error, f"{error}; trying again"
        if meaning != self._meaning:
            self._meaning = meaning
            log.info("%s", meaning)
        self._found = found


class Lookups:
    """Looks up several endpoints, of one server each.

    Args:
      endpoints: as for `Lookup`, in an order that their addresses keep.
    """

    def __init__(self, endpoints: Sequence[str], resolve: Resolve = Endpoint.addresses) -> None:
        self._each = [Lookup(endpoint, resolve) for endpoint in endpoints]
        self._found: list[Endpoint | None] = [None] * len(self._each)

    def start(self) -> None:
        """Begin a lookup of each."""
        for lookup in self._each:
            lookup.start()

    def take(self) -> list[Endpoint] | None:
        """The newest address of each, once all are known; None if there is nothing new.

        Raises:
          PeerLost: a name does not resolve.
        """
        is_new = False
        for number, lookup in enumerate(self._each):
            if new := lookup.take():
                self._found[number], is_new = new[0], True
        known = [place for place in self._found if place is not None]
        return known if is_new and len(known) == len(self._found) else None
