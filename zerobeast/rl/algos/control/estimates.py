"""What critics estimate of a return, its mean or a distribution, as `zerobeast.rl.algos.value.q_values` has of choices.

estimates.means(critics(features, actions))                     # [k, N], what a policy ascends
estimates.compare(chosen, estimates.least(later), reward, discount)
"""

import torch
from torch import Tensor

from zerobeast.rl.algos.value.q_values import Comparison, Distributions
from zerobeast.rl.replay_settings import BoxSettings


class Means:
    """Estimates [k, N] of the mean, and half the squared error."""

    atoms: int | None = None  #: as passed to `Critics`

    def means(self, estimates: Tensor) -> Tensor:
        """The expected returns, [k, N]: as they are."""
        return estimates

    def least(self, estimates: Tensor) -> Tensor:
        """Of k estimates the one with the smallest mean, [N] (Fujimoto et al. 2018, equation 10)."""
        return estimates.amin(0)

    def compare(self, chosen: Tensor, bootstrap: Tensor, reward: Tensor, discount: Tensor) -> Comparison:
        """Compare estimates with the target reward + discount Z.

        Args:
          chosen: [k, N] estimates of what was done, with gradient.
          bootstrap: Z [N], what `least` returned some steps later, without gradient.
          reward, discount: [N], as of `Transitions`.
        """
        errors = chosen - torch.addcmul(reward, discount, bootstrap)
        return Comparison(0.5 * errors.square(), errors.detach().abs())


class Distributed(Distributions):
    """Estimates [k, N, K], logits of distributions over K returns: a categorical critic."""

    def means(self, estimates: Tensor) -> Tensor:
        """The expected returns, [k, N]."""
        return self.expectation(estimates)

    def least(self, estimates: Tensor) -> Tensor:
        """Of k distributions the one with the smallest mean, [N, K]."""
        chosen = self.expectation(estimates).argmin(0)
        return estimates[chosen, torch.arange(len(chosen), device=chosen.device)]


def make_estimates(settings: BoxSettings) -> Means | Distributed:
    """Those of the settings."""
    return Distributed(settings.atoms, settings.v_min, settings.v_max) if settings.atoms > 1 else Means()
