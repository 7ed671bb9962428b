"""A subscription to a topic of the weights plane, which is renewed if the learner has moved or stays silent."""

from __future__ import annotations

from collections import Counter

from zerobeast.common.errors import PeerLost, Refusal, RemoteProtocolError
from zerobeast.common.settings.endpoints import Endpoint
from zerobeast.common.transport import Context, Incoming, WeightsSubscriber
from zerobeast.common.transport.lookup import Lookup, Resolve

LOOKUP_PERIOD_S = 5.0  #: while nothing arrives
SILENCE_S = 10.0  #: after which the learner may have moved, or the connection may be dead
PATIENCE_LIMIT_S = 300.0  #: that a version may take on a slow link; each attempt gets twice as long as the last


class Subscription:
    """One subscription. Time is an argument.

    Args:
      context: of this process.
      endpoint: of the learner.
      about: the topic.
      resolve: endpoint -> addresses.
    """

    def __init__(self, context: Context, endpoint: str, about: bytes, resolve: Resolve) -> None:
        self._context, self._about = context, about
        self._port: WeightsSubscriber | None = None
        self._lookup = Lookup(endpoint, resolve)
        self._lookup_at = float("-inf")
        self._address: Endpoint | None = None
        self._heard_at = float("-inf")  # when the last message came or the connection was made
        self._patience_s = SILENCE_S
        self._retired: Counter[Refusal] = Counter()  # what former ports refused

    @property
    def pollable(self) -> list[object]:
        return self._port.pollable if self._port else []

    @property
    def refused(self) -> Counter[Refusal]:
        """Bad messages by reason."""
        return self._retired + self._port.refused if self._port else self._retired

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
        self._port = WeightsSubscriber(self._context, str(found[0]), self._about)
        self._address, self._heard_at = found[0], now
        return True

    def receive(self, now: float) -> Incoming | None:
        """The next message, or None.

        Raises:
          RemoteProtocolError: it is of another version.
        """
        incoming = self._port.receive() if self._port else None
        if incoming is not None:
            self._patience_s, self._heard_at = max(SILENCE_S, 2 * (now - self._heard_at)), now
        return incoming

    def refuse(self, error: RemoteProtocolError) -> None:
        """Count a message that cannot be used."""
        if self._port is not None:
            self._port.refuse(error)

    def close(self) -> bool:
        """End the subscription, until the next `connect`. True if there was one."""
        if self._port is None:
            return False
        self._retired += self._port.refused
        self._port.close()
        self._port, self._address = None, None
        self._heard_at = self._lookup_at = float("-inf")
        return True
