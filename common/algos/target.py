"""A network that follows another in leaps: it stays as it is for a number of updates, then becomes the same.

target = Target(source=net, copy=deepcopy(net), period=100)     # what is learned is compared with the copy
target = Target(source=deepcopy(net), copy=net, period=10)      # the copy acts, and is what is published
...
target.count()      # after each update of the source; True if the copy has just become the same
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import nn

N = TypeVar("N", bound=nn.Module)


class Target(Generic[N]):
    """Two networks of the same shape.

    Args:
      source: is trained.
      copy: follows it, without gradient. Both have to be the same at the start.
      period: updates of the source from one copy to the next.
    """

    def __init__(self, source: N, copy: N, period: int) -> None:
        self.source, self.copy, self._period = source, copy, period
        self._updates = 0  #: since they were the same

    def count(self) -> bool:
        """Say that the source was updated. Returns whether the copy has followed."""
        self._updates += 1
        if self._updates < self._period:
            return False
        self.follow()
        return True

    @torch.no_grad()
    def follow(self) -> None:
        """Make the copy the same now: weights and statistics."""
        self._updates = 0
        for own, new in zip(self.copy.state_dict().values(), self.source.state_dict().values(), strict=True):
            own.copy_(new)

    def state(self, *, other: N) -> dict[str, Any]:
        """What a checkpoint has to hold.

        Args:
          other: the one of the two that the checkpoint does not hold already.
        """
        return {"weights": other.state_dict(), "updates": self._updates}

    def load(self, state: dict[str, Any], *, other: N) -> None:
        """Continue from `state`."""
        other.load_state_dict(state["weights"])
        self._updates = state["updates"]
