"""A subscription to a topic of the weights plane, which is renewed if the learner has moved or stays silent."""

from __future__ import annotations

from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.endpoints import Endpoint
from zerobeast.common.transport import Context, Incoming, WeightsSubscriber
from zerobeast.common.transport.lookup import Lookup, Resolve

LOOKUP_PERIOD_S = 5.0  #: while nothing arrives
SILENCE_S = 10.0  #: after which the learner may have moved, or the connection may be dead
PATIENCE_LIMIT_S = 300.0  #: that a version may take on a slow link; each attempt gets twice as long as the last


class Subscription(WeightsSubscriber):
    """One subscription. Time is an argument.

    Args:
      context: of this process.
      endpoint: of the learner.
      about: the topic.
      resolve: endpoint -> addresses.
    """

    def __init__(self, context: Context, endpoint: str, about: bytes, resolve: Resolve) -> None:
        super().__init__(context, about=about)
        self._lookup = Lookup(endpoint, resolve)
        self._lookup_at = float("-inf")
        self._address: Endpoint | None = None
        self._heard_at = float("-inf")  # when the last message came or the connection was made
        self._patience_s = SILENCE_S

    def connect(self, now: float) -> bool:
        """Subscribe, or resubscribe if a silent learner has moved or is silent for long. True if `pollable` changed."""
        silent_s = now - self._heard_at
        if silent_s < SILENCE_S:
            return False
        if now >= self._lookup_at:
            self._lookup_at = now + LOOKUP_PERIOD_S
            self._lookup.start()
        try:
            found = self._lookup.take()
        except PeerLost:
            return False
        if not found or (self._address in found and silent_s < self._patience_s):
            return False
        if self._address in found:
            self._patience_s = min(2 * self._patience_s, PATIENCE_LIMIT_S)
        self.close()
        self.open(found[0])
        self._address, self._heard_at = found[0], now
        return True

    def take(self, now: float) -> Incoming | None:
        """The next message, or None.

        Raises:
          RemoteProtocolError: it is of another version.
        """
        incoming = self.receive()
        if incoming is not None:
            self._patience_s, self._heard_at = max(SILENCE_S, 2 * (now - self._heard_at)), now
        return incoming

    def close(self) -> bool:
        """End the subscription, until the next `connect`. True if there was one."""
        self._address = None
        self._heard_at = self._lookup_at = float("-inf")
        return super().close()
