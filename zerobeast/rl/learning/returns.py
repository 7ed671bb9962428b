"""From rewards to value targets and advantages, the same for every algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobeast.rl.data import Batch
from zerobeast.rl.nets.normalize import MIN_VARIANCE, Moments
from zerobeast.rl.ops.losses import masked_reduce
from zerobeast.rl.ops.vtrace import VTrace, vtrace
from zerobeast.rl.settings import ActorCriticSettings, LearnerSettings

CLIP = 10.0  #: limit on rewards in units of the deviation of returns


def shape_rewards(rewards: Tensor, settings: LearnerSettings) -> Tensor:
    """Rewards as the learner uses them: scaled, then clipped.

    `soft_asymmetric` is the optimistic asymmetric clipping of IMPALA's runs on DMLab (Espeholt et al. 2018, figure D.1)
    in the form of their released code, whose slope at 0 is 1 for gains: the paper has 5 tanh(r) for them.
    """
    scaled = rewards * settings.reward_scale
    match settings.reward_clipping:
        case "abs_one":
            return scaled.clamp(-1.0, 1.0)
        case "soft_asymmetric":
            return 5.0 * torch.tanh(scaled / 5.0) * torch.where(scaled < 0.0, 0.3, 1.0)
        case "none":
            return scaled


def discounts(batch: Batch, discount: float) -> Tensor:
    """[T, B]: `discount`, and 0 where transition t terminated."""
    return (~batch.terminated[1:]).float() * discount


def estimate(
    settings: ActorCriticSettings, batch: Batch, values: Tensor, log_rhos: Tensor, scale: ReturnScale | None = None
) -> VTrace:
    """Value targets and advantages of a batch, with an algorithm's discount, lambda and clips.

    Args:
      settings: of the algorithm; a clip that they lack is 1.
      batch: from any behaviour policy.
      values: [T + 1, B], without gradient.
      log_rhos: [T, B] log-ratios of the policy being evaluated to the behaviour policy, without gradient.
      scale: converts rewards to the units that `values` are in; None: they are in units of rewards.
    """
    rewards = shape_rewards(batch.reward[1:], settings)
    return vtrace(
        log_rhos=log_rhos,
        discounts=discounts(batch, settings.discount),
        rewards=rewards if scale is None else scale(rewards),
        values=values,
        mask=batch.mask,
        **settings.model_dump(include={"trace_decay", "rho_bar", "c_bar", "pg_rho_bar"}),
    )


class ReturnScale(Moments):
    """Running deviation of returns. Rewards are divided by it, so that values stay in the range of a fresh network.

    Gymnasium's NormalizeReward and its like track the discounted sum of rewards in each environment. A learner gets
    rollouts without their past, so it uses its value targets instead, which are estimates of the same returns. They are
    added in units of rewards, [N] at a time.
    """

    @property
    def deviation(self) -> Tensor:
        """[], 1 before the first return."""
        return self.variance.clamp(min=MIN_VARIANCE).sqrt()

    def forward(self, rewards: Tensor) -> Tensor:
        """Rewards of any shape -> the same in units of the deviation, clipped."""
        return (rewards / self.deviation).clamp(-CLIP, CLIP)


def explained_variance(targets: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(target - V) / Var(target) over valid transitions; 0 if the targets do not vary."""
    target_variance = _variance(targets, mask)
    explained = 1.0 - _variance(targets - values, mask) / target_variance
    return explained.masked_fill(target_variance == 0.0, 0.0)


def _variance(entries: Tensor, mask: Tensor) -> Tensor:
    mean = masked_reduce(entries, mask, "mean")
    return masked_reduce((entries - mean).square(), mask, "mean")
