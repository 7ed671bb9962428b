"""IMPACT's loss: clipped surrogate against a target, value regression, entropy bonus (Luo et al. 2020, section 3)."""

import math

import torch
from torch import Tensor

from zerobeast.rl.algos.impact.config import ImpactConfig
from zerobeast.rl.algos.policy_gradient.actor_critic import lag_metrics, three_terms, unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import estimate
from zerobeast.rl.ops import losses
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.protocol import Metrics


def log_ratio(learner: Tensor, target: Tensor, behaviour: Tensor, rho: float) -> Tensor:
    """log R of R = min(mu / pi_target, rho) pi / mu = pi / max(pi_target, mu / rho), from three log-probabilities.

    If mu is near the target, R is PPO's ratio to the target; if an action has become much less likely since it was
    chosen, mu keeps R from growing.
    """
    return learner - torch.maximum(target, behaviour - math.log(rho))


def loss(
    config: ImpactConfig, family: Family, net: PolicyAndValue, batch: Batch, target_logits: Tensor, *, kl_cost: float
) -> tuple[Tensor, Metrics]:
    """The weighted sum of the terms, and its parts, all means over valid steps.

    Args:
      config: of IMPACT.
      family: of the policy's distributions.
      net: the policy that learns, and its values.
      batch: from any behaviour policy mu.
      target_logits: [T, B, A] of the target on this batch, without gradient.
      kl_cost: weight of KL(target || policy).
    """
    logits, values = unroll(net, batch)
    answers = (logits, target_logits, batch.extras["logits"])
    policy, target, behaviour = (family.of(each, batch.legal) for each in answers)
    actions, mask = batch.actions, batch.mask
    learner, aimed, taken = (each.log_prob(actions) for each in (policy, target, behaviour))
    # the target stands in for the policy (section 3.1): estimates follow the values, not every step of it
    vs, advantages, _ = estimate(config, batch, values.detach(), aimed - taken)  # R takes the place of `weights`
    log_ratios = log_ratio(learner, aimed, taken, config.rho)
    if config.normalize_advantages:
        advantages = losses.normalized(advantages, mask)
    pg = losses.clipped_surrogate_loss(
        log_ratios=log_ratios, advantages=advantages, clip=config.clip, mask=mask, reduction="mean"
    )
    total, metrics = three_terms(
        config, policy, pg=pg, values=values[:-1], targets=vs, mask=mask, entropy_cost=config.entropy_cost
    )
    kl = losses.masked_reduce(target.kl(policy), mask, "mean")
    if kl_cost:
        total = total + kl_cost * kl
    clipped = ((log_ratios.detach().exp() - 1).abs() > config.clip).float()
    metrics |= {
        "total": total.detach(),
        "kl": kl.detach(),
        "kl_cost": torch.full_like(kl.detach(), kl_cost),
        "clipped": losses.masked_reduce(clipped, mask, "mean"),
    }
    return total, metrics | lag_metrics(behaviour, policy, learner - taken, mask)
