"""What critics estimate of a return, its mean or a distribution, as `zerobeast.rl.algos.value.q_values` has of choices.

estimates.means(critics(features, actions))                     # [k, N], what a policy ascends
estimates.compare(chosen, estimates.least(later), bonus, reward, discount)
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

    def compare(
        self, chosen: Tensor, bootstrap: Tensor, bonus: Tensor | float, reward: Tensor, discount: Tensor
    ) -> Comparison:
        """Compare estimates with the target reward + discount (Z + bonus).

        Args:
          chosen: [k, N] estimates of what was done, with gradient.
          bootstrap: Z [N], what `least` returned some steps later, without gradient.
          bonus: [N], what adds to it.
          reward, discount: [N], as of `Transitions`.
        """
        errors = chosen - torch.addcmul(reward, discount, bootstrap + bonus)
        return Comparison(0.5 * errors.square(), errors.detach().abs())


class Distributed:
    """Estimates [k, N, K], logits of distributions over K returns: a categorical critic.

    Args:
      n_atoms: K.
      v_min: the lowest return.
      v_max: the highest.
    """

    def __init__(self, n_atoms: int, v_min: float, v_max: float) -> None:
        self.atoms: int | None = n_atoms
        self._values = Distributions(n_atoms, v_min, v_max)

    def means(self, estimates: Tensor) -> Tensor:
        """The expected returns, [k, N]."""
        return self._values.expectation(estimates)

    def least(self, estimates: Tensor) -> Tensor:
        """Of k distributions the one with the smallest mean, [N, K]."""
        chosen = self.means(estimates).argmin(0)
        return estimates[chosen, torch.arange(len(chosen), device=chosen.device)]

    def compare(
        self, chosen: Tensor, bootstrap: Tensor, bonus: Tensor | float, reward: Tensor, discount: Tensor
    ) -> Comparison:
        """As `Means`: the bonus moves the distribution Z."""
        return self._values.compare(chosen, bootstrap, reward + discount * bonus, discount)


def make_estimates(settings: BoxSettings) -> Means | Distributed:
    """Those of the settings."""
    return Distributed(settings.atoms, settings.v_min, settings.v_max) if settings.atoms > 1 else Means()
