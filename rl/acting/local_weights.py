"""The weights of a learner on this machine, taken from the memory that it shares instead of from its socket."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torch import nn

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.endpoints import Endpoint
from zerobeast.common.settings.run import Run
from zerobeast.rl.nets.shared_weights import WeightsReader
from zerobeast.rl.nets.weights import Bytes

LOOK_PERIOD_S = 0.5  #: a learner that was started again has new memory


def place_of(endpoint: str) -> Path | None:
    """The file with the location of the weights of the learner at this endpoint; None if it is not on this machine."""
    path = Endpoint.parse(endpoint).path
    return Path(f"{path}.weights") if path else None


def shared_place(config: Run) -> Path | None:
    """`place_of` the run's learner.

    Raises:
      ConfigError: the run is deterministic and there is none: weights from a socket arrive at no fixed time.
    """
    place = place_of(config.learner.endpoint)
    if place is None and config.deterministic:
        endpoint = config.learner.endpoint
        raise ConfigError(f"learner.endpoint {endpoint} with deterministic: expected ipc://path, all on one machine")
    return place


class LocalWeights:
    """Follows the shared memory of the current learner.

    Args:
      place: from `place_of`.
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
        """Whether weights come from here and not from the socket; calls `look` first."""
        self.look(now)
        return self.only or self.reader is not None

    def look(self, now: float) -> None:
        """Every LOOK_PERIOD_S, check whether there is a learner, or another one."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_PERIOD_S
        seen = None
        with contextlib.suppress(OSError):
            status = os.stat(self._place)
            seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return
        self._seen, self.reader = seen, None
        with contextlib.suppress(OSError, ValueError):  # not for this net: the socket sends weights in other formats
            self.reader = WeightsReader(self._place, self._net)

    def newest(self) -> tuple[int, Bytes] | None:
        """A version that has not been taken yet and its weights, or None."""
        return self.reader.read() if self.reader is not None and self.reader.newer() else None
