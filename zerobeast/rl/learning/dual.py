"""A learned Lagrange multiplier: it grows while the measured quantity is above its limit, and shrinks below.

dual = Dual(initial=1.0, limit=0.01)
policy_loss = ... + dual.penalty(kl)    # a step of the policy's optimiser
dual_loss = dual.loss(kl)               # a step of the multiplier's
dual.project()
"""

import torch
from torch import Tensor, nn

FLOOR = 1e-8  #: Song et al. 2019, section 4.2: multipliers are projected to be at least this


class Dual(nn.Module):
    """Minimising `penalty` and `loss` in turn is the block coordinate descent of Song et al. 2019, equation 5.

    Args:
      initial: value of the multiplier.
      limit: upper limit on the measured quantity.
    """

    def __init__(self, initial: float, limit: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(initial))
        self.limit = limit

    def penalty(self, measured: Tensor) -> Tensor:
        """sg(value) * measured, for a scalar: what the limited parameters minimise."""
        return self.value.detach() * measured

    def loss(self, measured: Tensor) -> Tensor:
        """value * (limit - sg(measured)), for a scalar: what the multiplier minimises."""
        return self.value * (self.limit - measured.detach())

    @torch.no_grad()
    def project(self) -> None:
        """Keep the multiplier positive; call after each optimiser step."""
        self.value.clamp_(min=FLOOR)
