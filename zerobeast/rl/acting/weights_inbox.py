"""The learner's newest weights, checked before anything uses them.

A version is taken if its layout and size are those of the broker's own network, its checksum is right, and it is newer
than the current one or from a new start of the learner. Of several waiting versions only the newest is used. Whatever
else arrives is counted and named. Weights that a learner on this machine shares in memory come first; while there are
any, there is no subscription to the weights. Nor is there one while `sync.rule` requires no newer version; a
subscription to the news shows when it does.
"""

import contextlib
import os
from collections import Counter, deque
from pathlib import Path

import numpy as np
from torch import nn

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, PeerLost, Refusal, RemoteProtocolError
from zerobeast.common.settings import Run
from zerobeast.common.transport import NEWS_TOPIC, WEIGHTS_TOPIC, Context, Incoming, WeightsSubscriber, checksum, chunks
from zerobeast.common.transport.lookup import Lookup, Resolve
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.acting.sync import Sync
from zerobeast.rl.nets.shared_weights import WeightsReader
from zerobeast.rl.nets.weights import Bytes

LOOKUP_PERIOD_S = 5.0  #: while nothing arrives
SILENCE_S = 10.0  #: after which the learner may have moved, or the connection may be dead
PATIENCE_LIMIT_S = 300.0  #: that a version may take on a slow link; each attempt gets twice as long as the last
LOOK_PERIOD_S = 0.5  #: a learner that was started again has new memory
MAX_VERSIONS = 16  #: read in one call: a flood must not keep the broker from its loop
MAX_EPOCHS = 1024  #: of learners that have ended, kept


class Subscription(WeightsSubscriber):
    """Subscribes to a topic of the weights plane, again if the learner has moved or stays silent. Time is an argument.

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
        self._received_at = float("-inf")  # when the last message came or the connection was made
        self._patience_s = SILENCE_S

    def connect(self, now: float) -> bool:
        """Subscribe, or resubscribe if a silent learner has moved or is silent for long. True if `pollable` changed."""
        silent_s = now - self._received_at
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
        self._address, self._received_at = found[0], now
        return True

    def take(self, now: float) -> Incoming | None:
        """The next message, or None.

        Raises:
          RemoteProtocolError: it is of another version.
        """
        incoming = self.receive()
        if incoming is not None:
            self._patience_s, self._received_at = max(SILENCE_S, 2 * (now - self._received_at)), now
        return incoming

    def close(self) -> bool:
        """End the subscription, until the next `connect`. True if there was one."""
        self._address = None
        self._received_at = self._lookup_at = float("-inf")
        return super().close()


def shared_place(config: Run) -> Path | None:
    """The file with the location of the weights of the run's learner; None if it is not on this machine.

    Raises:
      ConfigError: the run is deterministic and there is none: weights from a socket arrive at no fixed time.
    """
    endpoint = config.learner.endpoint
    path = Endpoint.parse(endpoint).path
    if not path and config.deterministic:
        expected = "ipc://path, all on one machine"
        sentence = f"learner.endpoint {endpoint} with deterministic: expected {expected}"
        raise ConfigError(sentence, path="learner.endpoint", value=str(endpoint), expected=expected)
    return Path(f"{path}.weights") if path else None


class LocalWeights:
    """Follows the shared memory of the current learner.

    Args:
      place: from `shared_place`.
      net: whose weights they are.
      only: take none from elsewhere, not even before there is a learner.
    """

    def __init__(self, place: Path, net: nn.Module, *, only: bool = False) -> None:
        self.only = only
        self._place, self._net = place, net
        self._seen: tuple[int, int] | None = None  #: inode and mtime of the file at `place`
        self._look_at = float("-inf")
        self.reader: WeightsReader | None = None

    def serves(self, now: float) -> bool:
        """Whether weights come from here and not from the socket; looks every LOOK_PERIOD_S whose there are now."""
        if now >= self._look_at:
            self._look_at = now + LOOK_PERIOD_S
            self._look()
        return self.only or self.reader is not None

    def _look(self) -> None:
        """Check whether there is a learner, or another one."""
        seen = None
        with contextlib.suppress(OSError):
            status = os.stat(self._place)
            seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return
        self._seen, self.reader = seen, None
        with contextlib.suppress(OSError, ValueError):  # not for this net: the socket sends weights in other formats
            self.reader = WeightsReader(self._place, self._net)

    def newest(self) -> tuple[int, int, Bytes] | None:
        """A version that has not been taken yet: its learner's epoch, its number and its weights; or None."""
        reader = self.reader
        found = reader.read() if reader is not None and reader.newer() else None
        return None if reader is None or found is None else (reader.epoch, *found)


class WeightsInbox:
    """Receives weights for one network, identified by its `layout_id` and the `n_bytes` of its flat weights."""

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
        """Subscribe, or end a subscription that is not needed now. True if `pollable` changed.

        A new subscriber is served the newest version at once.
        """
        changed = not self.sync.continuous and self._news.connect(now)
        self._read_news(now)
        if not self.sync.wants(now) or (self._local is not None and self._local.serves(now)):
            return self._weights.close() or changed
        return self._weights.connect(now) or changed

    def newest(self, now: float) -> Bytes | None:
        """Read what waits; returns the flat weights [n_bytes] of a newer version, to be used at once, or None."""
        if self._local is not None and self.sync.wants(now) and (shared := self._local.newest()) is not None:
            known = shared[0] == self._epoch and shared[1] <= self.version
            return None if known else self._accept(*shared, now, is_local=True)
        found: Header | None = None
        for _ in range(MAX_VERSIONS):
            try:
                incoming = self._weights.take(now)
                if incoming is None:
                    break
                if self._wants(incoming.header, found):
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
        return self._accept(found.epoch, version, self._buffer, now, is_local=False)

    def close(self) -> None:
        self._weights.close()
        self._news.close()

    def _read_news(self, now: float) -> None:
        for _ in range(MAX_VERSIONS):
            try:
                if (incoming := self._news.take(now)) is None:
                    return
                if incoming.header.kind is not Kind.NEWS:
                    raise RemoteProtocolError(f"{incoming.header.kind.name} is no news of weights", "kind")
                self.sync.note_news(incoming.header, now)
            except RemoteProtocolError as error:
                self._news.refuse(error)

    def _accept(self, epoch: int, version: int, weights: Bytes, now: float, *, is_local: bool) -> Bytes:
        if epoch != self._epoch:
            self._past_epochs.append(self._epoch)
        self._epoch, self.version, self.is_local, self.complaint = epoch, version, is_local, ""
        self.sync.note_taken(epoch, version, self._buffer.nbytes, now)
        return weights

    def _wants(self, header: Header, found: Header | None) -> bool:
        """Whether to read this version's bytes; raises RemoteProtocolError if they cannot be used.

        A learner that has ended cannot come back through versions that still waited here.
        """
        if header.kind is not Kind.WEIGHTS:
            raise RemoteProtocolError(f"{header.kind.name} does not belong on the weights plane", "kind")
        version, layout, n_bytes, _, _ = header.body
        if layout != self.layout_id or n_bytes != self._buffer.nbytes:
            expected = f"expected {self.layout_id:#x} of {self._buffer.nbytes}; give both the same configuration"
            what = f"layout {layout:#x} of {n_bytes} bytes"
            raise RemoteProtocolError(f"the learner's architecture differs: {what}, {expected}", "layout")
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
