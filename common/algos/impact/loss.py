"""IMPACT's loss: clipped surrogate against a target, value regression, entropy bonus (Luo et al. 2020, section 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zerobeast.common.algos.actor_critic import lag_metrics, unroll
from zerobeast.common.algos.impact.config import ImpactConfig
from zerobeast.common.algos.protocol import Batch, Metrics
from zerobeast.common.algos.returns import discounts, explained_variance, shaped
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.ops import losses
from zerobeast.common.ops.distributions import Family
from zerobeast.common.ops.vtrace import VTrace, vtrace


def log_ratio(learner: Tensor, target: Tensor, behaviour: Tensor, rho: float) -> Tensor:
    """log R of R = min(mu / pi_target, rho) pi / mu = pi / max(pi_target, mu / rho), from three log-probabilities.

    Where the behaviour is near the target R is PPO's ratio to the target; where an action has become much less likely
    since it was chosen, the behaviour keeps R from growing.
    """
    return learner - torch.maximum(target, behaviour - math.log(rho))


def loss(
    config: ImpactConfig, family: Family, net: AgentNet, batch: Batch, target_logits: Tensor, *, kl_cost: float
) -> tuple[Tensor, Metrics]:
    """The weighted sum of the terms, and its parts, all means over valid steps.

    Args:
      config: of IMPACT.
      family: of the policy's distributions.
      net: the policy that learns, and its values.
      batch: of any policy mu.
      target_logits: [T, B, A] of the target in this batch, without gradient.
      kl_cost: weight of KL(target || policy).
    """
    logits, values = unroll(net, batch)
    policy, target, actions, mask = family.of(logits), family.of(target_logits), batch.last_action[1:], batch.mask
    behaviour = family.of(batch.behaviour_logits)
    learner, aimed, taken = (each.log_prob(actions) for each in (policy, target, behaviour))
    vs, advantages, _ = _estimate(config, batch, values.detach(), aimed - taken)
    log_ratios = log_ratio(learner, aimed, taken, config.rho)
    if config.normalize_advantages:
        advantages = losses.normalized(advantages, mask)
    pg = losses.clipped_surrogate_loss(
        log_ratios=log_ratios, advantages=advantages, clip=config.clip, mask=mask, reduction="mean"
    )
    baseline = losses.baseline_loss(values=values[:-1], targets=vs, mask=mask, reduction="mean")
    entropy = losses.entropy_loss(entropies=policy.entropy(), mask=mask, reduction="mean")
    kl = losses.masked_reduce(target.kl(policy), mask, "mean")
    total = pg + config.baseline_cost * baseline + config.entropy_cost * entropy
    if kl_cost:
        total = total + kl_cost * kl
    clipped = ((log_ratios.detach().exp() - 1).abs() > config.clip).float()
    return total, {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "baseline_loss": baseline.detach(),
        "entropy": -entropy.detach(),
        "kl": kl.detach(),
        "kl_cost": torch.full_like(kl.detach(), kl_cost),
        "clipped": losses.masked_reduce(clipped, mask, "mean"),
        **lag_metrics(behaviour, policy, learner - taken, mask),
        "explained_variance": explained_variance(vs, values.detach()[:-1], mask),
        "valid_fraction": mask.float().mean(),
    }


def _estimate(config: ImpactConfig, batch: Batch, values: Tensor, log_rhos: Tensor) -> VTrace:
    """Targets of the values and advantages, both corrected by the ratios pi_target / mu, [T, B] each.

    The target stands for the policy (section 3.1): what is estimated then moves with the values alone, not with every
    step of the policy. `VTrace.weights` is not used: R is the weight of the advantages.
    """
    rewards, gammas = shaped(batch.reward[1:], config), discounts(batch, config.discount)
    return vtrace(
        log_rhos=log_rhos,
        discounts=gammas,
        rewards=rewards,
        values=values,
        mask=batch.mask,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        trace_decay=config.trace_decay,
    )
