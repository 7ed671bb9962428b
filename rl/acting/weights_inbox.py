"""The learner's newest weights, checked before anything uses them.

A version is taken if its layout and size are those of the broker's own network, its checksum is right, and it is newer
than the current one or from a new start of the learner. Of several waiting versions only the newest is used. Whatever
else arrives is counted and named. Weights that a learner on this machine shares in memory come first; while there are
any, there is no subscription to the weights. Nor is there one while `sync.rule` wants no newer version; a subscription
to the news tells when it does.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import Refusal, RemoteProtocolError
from zerobeast.common.settings.endpoints import Endpoint
from zerobeast.common.transport import NEWS_TOPIC, WEIGHTS_TOPIC, Context, Incoming, checksum, chunks
from zerobeast.common.transport.lookup import Resolve
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.acting.local_weights import LocalWeights
from zerobeast.rl.acting.subscription import Subscription
from zerobeast.rl.acting.sync import Sync

log = logging.getLogger(__name__)

MAX_VERSIONS = 16  #: read in one call: a flood must not keep the broker from its loop
MAX_EPOCHS = 1024  #: of learners that have ended, remembered


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
        sync: Sync | None = None,
    ) -> None:
        self.layout_id = layout_id
        self.version = -1  #: of the current weights; negative before the first
        self.is_local = False  #: whether the newest weights came from memory, in the formats that act
        self.complaint = ""  #: why the newest refused version cannot be used
        self.sync = sync or Sync()
        self._epoch = 0
        self._past_epochs: deque[int] = deque(maxlen=MAX_EPOCHS)
        self._buffer = np.zeros(n_bytes, np.uint8)
        self._weights = Subscription(context, endpoint, WEIGHTS_TOPIC, resolve)
        self._news = Subscription(context, endpoint, NEWS_TOPIC, resolve)
        self._local = local

    @property
    def pollable(self) -> list[object]:
        return [*self._weights.pollable, *self._news.pollable]

    @property
    def refused(self) -> Counter[Refusal]:
        """Bad versions by reason."""
        return self._weights.refused + self._news.refused

    def connect(self, now: float) -> bool:
        """Subscribe, or end a subscription that is not wanted now. True if `pollable` changed.

        A new subscriber is served the newest version at once.
        """
        changed = not self.sync.continuous and self._news.connect(now)
        self._hear(now)
        if not self.sync.wants(now) or (self._local is not None and self._local.serves(now)):
            return self._weights.close() or changed
        return self._weights.connect(now) or changed

    def newest(self, now: float) -> NDArray[np.uint8] | None:
        """Read what waits; returns the flat weights [n_bytes] of a newer version, to be used at once, or None."""
        if self._local is not None and self.sync.wants(now) and (shared := self._local.newest()) is not None:
            return self._shared(*shared, now)
        found: Header | None = None
        for _ in range(MAX_VERSIONS):
            try:
                incoming = self._weights.take(now)
                if incoming is None:
                    break
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
        self._accept(found.epoch, version, now, is_local=False)
        return self._buffer

    def close(self) -> None:
        self._weights.close()
        self._news.close()

    def _hear(self, now: float) -> None:
        for _ in range(MAX_VERSIONS):
            try:
                if (incoming := self._news.take(now)) is None:
                    return
                if incoming.header.kind is not Kind.NEWS:
                    raise RemoteProtocolError(f"{incoming.header.kind.name} is no news of weights", "kind")
                self.sync.heard(incoming.header, now)
            except RemoteProtocolError as error:
                self._news.refuse(error)

    def _accept(self, epoch: int, version: int, now: float, *, is_local: bool) -> None:
        if epoch != self._epoch:
            self._past_epochs.append(self._epoch)
        self._epoch, self.version, self.is_local, self.complaint = epoch, version, is_local, ""
        self.sync.took(epoch, version, self._buffer.nbytes, now)

    def _shared(self, version: int, weights: NDArray[np.uint8], now: float) -> NDArray[np.uint8] | None:
        assert self._local is not None, "they came from it"
        assert self._local.reader is not None, "they came from it"
        epoch = self._local.reader.epoch
        if epoch == self._epoch and version <= self.version:
            return None
        self._accept(epoch, version, now, is_local=True)
        return weights

    def _wanted(self, header: Header, found: Header | None) -> bool:
        """Whether to read this version's bytes; raises RemoteProtocolError if they cannot be used.

        A learner that has ended cannot come back through versions that still waited here.
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
        self._weights.refuse(error)
