"""The learner's newest weights, checked before anything uses them.

A version is taken if its layout, size and checksum are those of the broker's own network and if it is newer
than the current one, or of a new start of the learner. Versions that wait are skipped up to the newest. Whatever
else arrives is counted and named. What a learner of this machine shares in memory comes first, and while it does, there
is no subscription.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.acting.local_weights import LocalWeights
from zerobeast.common.errors import PeerLost, Refusal, RemoteProtocolError
from zerobeast.common.runtime.endpoints import Endpoint
from zerobeast.common.transport import Context, Incoming, WeightsSubscriber, checksum, chunks
from zerobeast.common.transport.lookup import Lookup, Resolve
from zerobeast.common.wire.messages import Header, Kind

log = logging.getLogger(__name__)

MAX_VERSIONS = 16  #: read in one call: a flood must not keep the broker from its loop
MAX_EPOCHS = 1024  #: of learners that have ended, remembered
LOOKUP_PERIOD_S = 5.0  #: while nothing comes
SILENCE_S = 10.0  #: after which the learner may have moved, or the connection be dead
PATIENCE_LIMIT_S = 300.0  #: that a version may take on a slow link; each attempt is given twice the time of the last


class WeightsInbox:
    """Receives weights for one network, known by its `layout_id` and the `n_bytes` of its flat weights."""

    def __init__(
        self,
        context: Context,
        endpoint: str,
        layout_id: int,
        n_bytes: int,
        resolve: Resolve = Endpoint.addresses,
        local: LocalWeights | None = None,
    ) -> None:
        self.layout_id = layout_id
        self.version = -1  #: of the current weights; negative before the first
        self.is_local = False  #: whether the newest weights came from memory, in the formats that act
        self.complaint = ""  #: why the newest refused version cannot be used
        self._context = context
        self._epoch = 0
        self._past_epochs: deque[int] = deque(maxlen=MAX_EPOCHS)
        self._buffer = np.zeros(n_bytes, np.uint8)
        self._port: WeightsSubscriber | None = None
        self._lookup = Lookup(endpoint, resolve)
        self._local = local
        self._lookup_at = float("-inf")
        self._address: Endpoint | None = None
        self._heard_at = float("-inf")  # a version, or a new connection
        self._patience_s = SILENCE_S
        self._retired: Counter[Refusal] = Counter()  # what former ports refused

    @property
    def pollable(self) -> list[object]:
        return self._port.pollable if self._port else []

    @property
    def refused(self) -> Counter[Refusal]:
        """Bad versions by reason."""
        return self._retired + self._port.refused if self._port else self._retired

    def connect(self, now: float) -> bool:
        """Subscribe, also again where a silent learner has moved, or stays silent for long.

        A new subscriber is served the newest version at once. True if `pollable` changed.
        """
        if self._local is not None and self._local.serves(now):
            was_subscribed, self._address, self._heard_at = self._port is not None, None, float("-inf")
            self.close()
            return was_subscribed
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
        self._port = WeightsSubscriber(self._context, str(found[0]))
        self._address, self._heard_at = found[0], now
        return True

    def newest(self, now: float) -> NDArray[np.uint8] | None:
        """Read what waits; the flat weights [n_bytes] where a newer version came, to be used at once."""
        if self._local is not None and (shared := self._local.newest()) is not None:
            return self._shared(*shared)
        found: Header | None = None
        for _ in range(MAX_VERSIONS):
            try:
                incoming = self._port.receive() if self._port else None
                if incoming is None:
                    break
                self._patience_s, self._heard_at = max(SILENCE_S, 2 * (now - self._heard_at)), now
                if self._wanted(incoming.header, found):
                    found = None  # whatever was in the buffer is overwritten
                    self._take(incoming)
                    found = incoming.header
            except RemoteProtocolError as error:
                self._refuse(error)
        if found is None:
            return None
        version, _, _, expected, _ = found.body
        if checksum(self._buffer) != expected:
            self._refuse(RemoteProtocolError(f"version {version} of the weights fails its checksum", "checksum"))
            return None
        self._accept(found.epoch, version, is_local=False)
        return self._buffer

    def close(self) -> None:
        if self._port is not None:
            self._retired += self._port.refused
            self._port.close()
            self._port = None

    def _accept(self, epoch: int, version: int, *, is_local: bool) -> None:
        if epoch != self._epoch:
            self._past_epochs.append(self._epoch)
        self._epoch, self.version, self.is_local, self.complaint = epoch, version, is_local, ""

    def _shared(self, version: int, weights: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        assert self._local is not None, "they came from it"
        assert self._local.reader is not None, "they came from it"
        epoch = self._local.reader.epoch
        if epoch == self._epoch and version <= self.version:
            return None
        self._accept(epoch, version, is_local=True)
        return weights

    def _wanted(self, header: Header, found: Header | None) -> bool:
        """Whether to read this version's bytes; raises RemoteProtocolError if they cannot be used.

        A learner that ended cannot come back with what still waited here.
        """
        if header.kind is not Kind.WEIGHTS:
            raise RemoteProtocolError(f"{header.kind.name} does not belong on the weights plane", "kind")
        version, layout, n_bytes, _, _ = header.body
        if layout != self.layout_id or n_bytes != self._buffer.nbytes:
            sentence = (
                f"the learner's architecture differs: layout {layout:#x} of {n_bytes} bytes, "
                f"expected {self.layout_id:#x} of {self._buffer.nbytes}; give both the same configuration"
            )
            raise RemoteProtocolError(sentence, "layout")
        epoch, newest = (self._epoch, self.version) if found is None else (found.epoch, found.body[0])
        return version > newest if header.epoch == epoch else header.epoch not in self._past_epochs

    def _take(self, incoming: Incoming) -> None:
        parts = chunks(self._buffer)
        for place, chunk in enumerate(parts, 1):
            if not incoming.into(chunk, last=place == len(parts)):
                raise RemoteProtocolError("weights arrived in chunks of another size", "payload")

    def _refuse(self, error: RemoteProtocolError) -> None:
        self.complaint = str(error)
        if self._port is not None:
            self._port.refuse(error)
