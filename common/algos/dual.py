"""A Lagrange multiplier that is learned: it grows while what it limits is above its limit, and shrinks below.

dual = Dual(initial=1.0, limit=0.01)
policy_loss = ... + dual.penalty(kl)    # a step of the policy's optimiser
dual_loss = dual.loss(kl)               # a step of the multiplier's
dual.project()
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

FLOOR = 1e-8  #: Song et al. 2019, section 4.2: multipliers are projected to be at least this


class Dual(nn.Module):
    """Minimising `penalty` and `loss` in turn is the block coordinate descent of Song et al. 2019, equation 5.

    Args:
      initial: of the multiplier.
      limit: what is measured should stay below it.
    """

    def __init__(self, initial: float, limit: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(initial))
        self.limit = limit

    def penalty(self, measured: Tensor) -> Tensor:
        """sg(value) * measured, for a scalar: what the limited one minimises."""
        return self.value.detach() * measured

    def loss(self, measured: Tensor) -> Tensor:
        """value * (limit - sg(measured)), for a scalar: what the multiplier minimises."""
        return self.value * (self.limit - measured.detach())

    @torch.no_grad()
    def project(self) -> None:
        """Keep it positive, after each step of the optimiser."""
        self.value.clamp_(min=FLOOR)
