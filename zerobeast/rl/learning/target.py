"""A network that follows another: after a number of updates, its weights become the other's or move towards them.

target = Target(source=net, copy=deepcopy(net), period=100)     # what is learned is compared with the copy
target = Target(source=deepcopy(net), copy=net, period=10)      # the copy acts, and is what is published
target = Target(source=net, copy=deepcopy(net), tau=0.005)      # after each update a step of 0.5% towards the source
...
target.count()      # after each update of the source; True if the copy has just followed
"""

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

N = TypeVar("N", bound=nn.Module)


class Target(Generic[N]):
    """Two networks of the same shape.

    Args:
      source: the network that is trained.
      copy: the network that follows it, without gradient. Both must be the same at the start.
      period: updates of the source after which the copy follows.
      tau: 1: the copy becomes the same (Mnih et al. 2015, algorithm 1). Below 1: its weights become
        tau source + (1 - tau) copy (Lillicrap et al. 2016, algorithm 1), while statistics and counts are copied.
      acts: whether the copy is the policy that acts, which a checkpoint holds anyway, and not the source.
    """

    def __init__(self, source: N, copy: N, period: int = 1, tau: float = 1.0, *, acts: bool = False) -> None:
        self.source, self.copy, self._period, self._tau = source, copy, period, tau
        self._weights = [tuple[Tensor, ...](net.parameters()) for net in (source, copy)]  #: of both, in the same order
        self._updates = 0  #: since the copy last followed
        self._other = source if acts else copy  #: the one that a checkpoint does not hold otherwise

    @torch.no_grad()
    def count(self) -> bool:
        """Count an update of the source. Returns whether the copy has followed: weights and statistics."""
        self._updates += 1
        if self._updates < self._period:
            return False
        self._updates = 0
        sources, copies = self._weights
        if self._tau < 1:
            torch._foreach_lerp_(copies, sources, self._tau)
        else:
            torch._foreach_copy_(copies, sources)
        for own, new in zip(self.copy.buffers(), self.source.buffers(), strict=True):
            own.copy_(new)
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold besides the network that acts or is trained."""
        return {"weights": self._other.state_dict(), "updates": self._updates}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._other.load_state_dict(state["weights"])
        self._updates = state["updates"]
