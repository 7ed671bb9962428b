"""V-MPO's loss: imitate the better half of the actions, within limits (Song et al. 2019, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.actor_critic import Loss, unroll
from common.algos.protocol import Batch, Metrics
from common.algos.returns import discounts, explained_variance, shaped
from common.algos.vmpo.config import VMPOConfig
from common.algos.vmpo.multipliers import Multipliers
from common.nets.agent import AgentNet
from common.ops.distributions import Distribution, Family
from common.ops.losses import baseline_loss, masked_reduce
from common.ops.vtrace import vtrace


def loss(config: VMPOConfig, family: Family, net: AgentNet, multipliers: Multipliers, batch: Batch) -> Loss:
    """The sum of its four terms.

    Args:
      config: of V-MPO.
      family: of the policy's distributions.
      net: that is trained, which also says what states are worth.
      multipliers: trained with it.
      batch: with at least one valid transition; its behaviour is the policy that the new one stays near to.
    """
    logits, values = unroll(net, batch)
    policy, mask = family.of(logits), batch.mask
    targets = _targets(config, batch, values.detach())
    scale = net.value_scale(batch.task)
    advantages = (targets - values.detach()[:-1]) / scale
    pg, temperature, metrics = _imitation(multipliers, policy.log_prob(batch.last_action[1:]), advantages, mask)
    penalty, divergences = _penalty(config, multipliers, family.of(batch.behaviour_logits), policy, mask)
    baseline = baseline_loss(values=values[:-1] / scale, targets=targets / scale, mask=mask, reduction="mean")
    total = pg + temperature + penalty + config.baseline_cost * baseline
    metrics |= divergences
    metrics |= {
        "total": total.detach(),
        "baseline_loss": baseline.detach(),
        "entropy": masked_reduce(policy.entropy().detach(), mask, "mean"),
        "explained_variance": explained_variance(targets, values.detach()[:-1], mask),
        "valid_fraction": mask.float().mean(),
    }
    return Loss(total, targets, metrics)


def _targets(config: VMPOConfig, batch: Batch, values: Tensor) -> Tensor:
    """[T, B]: n-step returns, where `trace_decay` is 1."""
    rewards = shaped(batch.reward[1:], config)
    return vtrace(
        log_rhos=torch.zeros_like(rewards),
        discounts=discounts(batch, config.discount),
        rewards=rewards,
        values=values,
        mask=batch.mask,
        trace_decay=config.trace_decay,
    ).vs


def _imitation(
    multipliers: Multipliers, log_probs: Tensor, advantages: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """The policy's loss and the temperature's, from the half of the valid steps with the largest advantages.

    The policy's is a sum, because its weights add up to 1. A threshold at the median, instead of a number of steps,
    would drop or add those of equal rank.
    """
    valid = advantages[mask]
    best, where = valid.topk(max(1, len(valid) // 2))
    weights = multipliers.weights(best)
    pg = -(weights * log_probs[mask][where]).sum()
    divergence = (weights * (weights * len(best)).log()).nansum()  # 0 log 0 is 0
    metrics = {
        "pg_loss": pg.detach(),
        "eta": multipliers.eta.value.detach().clone(),
        "eta_kl": divergence,
    }
    return pg, multipliers.temperature_loss(best), metrics


def _penalty(
    config: VMPOConfig, multipliers: Multipliers, old: Distribution, new: Distribution, mask: Tensor
) -> tuple[Tensor, Metrics]:
    """Equation 5, over all valid steps, summed over what is limited; with a weight of 0 it is only measured."""
    total, metrics = torch.zeros_like(multipliers.eta.value), Metrics()
    for (name, dual), divergence in zip(multipliers.alphas.items(), old.kl_parts(new), strict=True):
        measured = masked_reduce(divergence, mask, "mean")
        metrics[name] = measured.detach()
        if config.kl_weight:
            total = total + dual.penalty(measured)
            metrics[f"{name}_weight"] = dual.value.detach().clone()
    return total, metrics
