"""A Lagrange multiplier that is learned: it grows while what it limits is above its limit, and shrinks below.

dual = Dual(initial=1.0, limit=0.01)
loss = ... + dual.penalty(kl)       # weighs kl for the policy, and compares it with the limit for the multiplier
...                                 # one step of the optimiser over policy and dual
dual.project()
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

FLOOR = 1e-8  #: Song et al. 2019, section 4.2: multipliers are projected to be at least this


class Dual(nn.Module):
    """Minimising `penalty` is the alternation of block coordinate descent in one step (Song et al. 2019, equation 5).

    Args:
      initial: of the multiplier.
      limit: what is measured should stay below it.
    """

    def __init__(self, initial: float, limit: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(initial))
        self.limit = limit

    def penalty(self, measured: Tensor) -> Tensor:
        """value * (limit - sg(measured)) + sg(value) * measured, for a scalar; its own value is value * limit."""
        return self.value * (self.limit - measured.detach()) + self.value.detach() * measured

    @torch.no_grad()
    def project(self) -> None:
        """Keep it positive, after each step of the optimiser."""
        self.value.clamp_(min=FLOOR)
