"""The weights of a learner on this machine, taken from the memory that it shares instead of from its socket."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torch import nn

from zerobeast.common.nets.shared_weights import WeightsReader
from zerobeast.common.nets.weights import Bytes
from zerobeast.common.runtime.endpoints import Endpoint

LOOK_PERIOD_S = 0.5  #: a learner that was started again has other memory


def place_of(endpoint: str) -> Path | None:
    """The file in which the learner at this endpoint says where its weights are; None if it is not of this machine."""
    path = Endpoint.parse(endpoint).path
    return Path(f"{path}.weights") if path else None


class LocalWeights:
    """Follows the memory of whichever learner there is.

    Args:
      place: what `place_of` says.
      net: whose weights they are.
    """

    def __init__(self, place: Path, net: nn.Module) -> None:
        self._place, self._net = place, net
        self._seen: tuple[int, int] | None = None  #: which file said where
        self._look_at = float("-inf")
        self.reader: WeightsReader | None = None

    def look(self, now: float) -> None:
        """Now and then, see whether there is a learner, or another one."""
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
        with contextlib.suppress(OSError, ValueError):  # not for this net: the socket has weights in other formats
            self.reader = WeightsReader(self._place, self._net)

    def newest(self) -> tuple[int, Bytes] | None:
        """A version that was not taken yet, and its weights."""
        return self.reader.read() if self.reader is not None and self.reader.newer() else None
