"""The weight of entropy against rewards, which is learned so that the policy has a given entropy (Haarnoja et al.
2018b, section 5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """alpha, by its logarithm, which keeps it positive and moves it by a share of itself: as in the authors' code.

    Args:
      initial: of alpha.
      target: entropy, nats.
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
        """What lowers alpha while there is more entropy than the target, and raises it while there is less.

        Equation 18, with log alpha for alpha.

        Args:
          log_prob: [N] of the policy's own actions, used as constants.

        Returns:
          [].
        """
        return -self.log * (log_prob.detach().mean() + self.target)
