"""The weight of entropy against rewards, learned so that the policy keeps a given entropy (Haarnoja et al.
2018b, section 5)."""

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """alpha, stored as its logarithm, so it stays positive and moves in proportion to itself: as in the authors' code.

    Args:
      initial: of alpha.
      target: entropy, in nats.
    """

    def __init__(self, initial: float, target: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))
        self.target = target

    @property
    def value(self) -> Tensor:
        """alpha, [], without gradient."""
        return self.log.detach().exp()

    def loss(self, log_prob: Tensor) -> Tensor:
        """A loss that lowers alpha while the entropy is above the target, and raises it while it is below.

        Equation 18, with log alpha for alpha.

        Args:
          log_prob: [N] of the policy's own actions, used as constants.

        Returns:
          [].
        """
        return -self.log * (log_prob.detach().mean() + self.target)
