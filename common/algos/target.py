"""A network that follows another: it stays as it is for a number of updates, then becomes the same, or a bit more so.

target = Target(source=net, copy=deepcopy(net), period=100)     # what is learned is compared with the copy
target = Target(source=deepcopy(net), copy=net, period=10)      # the copy acts, and is what is published
target = Target(source=net, copy=deepcopy(net), tau=0.005)      # after each update a step of 0.5% towards the source
...
target.count()      # after each update of the source; True if the copy has just followed
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

N = TypeVar("N", bound=nn.Module)


class Target(Generic[N]):
    """Two networks of the same shape.

    Args:
      source: is trained.
      copy: follows it, without gradient. Both have to be the same at the start.
      period: updates of the source from one time that the copy follows to the next.
      tau: 1: the copy becomes the same (Mnih et al. 2015, algorithm 1). Below: its weights become
        tau source + (1 - tau) copy (Lillicrap et al. 2016, algorithm 1); statistics and counts become the same.
    """

    def __init__(self, source: N, copy: N, period: int = 1, tau: float = 1.0) -> None:
        self.source, self.copy, self._period, self._tau = source, copy, period, tau
        self._weights = [tuple[Tensor, ...](net.parameters()) for net in (source, copy)]  #: of both, side by side
        self._updates = 0  #: since the copy has followed

    def count(self) -> bool:
        """Say that the source was updated. Returns whether the copy has followed."""
        self._updates += 1
        if self._updates < self._period:
            return False
        self.follow()
        return True

    @torch.no_grad()
    def follow(self) -> None:
        """Have the copy follow now: weights and statistics."""
        self._updates = 0
        sources, copies = self._weights
        if self._tau < 1:
            torch._foreach_lerp_(copies, sources, self._tau)
        else:
            torch._foreach_copy_(copies, sources)
        for own, new in zip(self.copy.buffers(), self.source.buffers(), strict=True):
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
