"""V-MPO's loss: imitate the better half of the actions, within limits (Song et al. 2019, section 4.1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zerobeast.common.algos.actor_critic import lag_metrics, unroll
from zerobeast.common.algos.batch import Batch
from zerobeast.common.algos.policy_and_value import PolicyAndValue
from zerobeast.common.algos.protocol import Metrics
from zerobeast.common.algos.returns import estimate, explained_variance
from zerobeast.common.algos.vmpo.config import VMPOConfig
from zerobeast.common.algos.vmpo.multipliers import Multipliers
from zerobeast.common.ops.distributions import Distribution, Family
from zerobeast.common.ops.losses import baseline_loss, masked_reduce


class VmpoLoss(NamedTuple):
    """What one look at a batch gives."""

    policy: Tensor  #: [], imitation, divergence and value regression: for the network
    multipliers: Tensor  #: [], for temperature and weights
    targets: Tensor  #: [T, B] of the values, without gradient
    metrics: Metrics


def loss(
    config: VMPOConfig,
    family: Family,
    net: PolicyAndValue,
    multipliers: Multipliers,
    batch: Batch,
    target_logits: Tensor,
) -> VmpoLoss:
    """Two sums, one for the network and one for the multipliers.

    The target stands for the policy that acted, whatever did: a batch that an older target began counts by its ratio to
    the target, which is 1 if nothing else acted.

    Args:
      config: of V-MPO.
      family: of the policy's distributions.
      net: that is trained, which also says what states are worth.
      multipliers: trained beside it.
      batch: with at least one valid transition, of any policy mu.
      target_logits: [T, B, A] of the policy that the new one stays near to, without gradient.
    """
    logits, values = unroll(net, batch)
    answers = (logits, target_logits, batch.extras["logits"])
    policy, target, behaviour = (family.of(each, batch.legal) for each in answers)
    actions, mask = batch.actions, batch.mask
    learner, aimed, taken = (each.log_prob(actions) for each in (policy, target, behaviour))
    targets, advantages, _ = estimate(config, batch, values.detach(), aimed - taken)  # w weighs, not `weights`
    scale = net.value_scale(batch.task)
    best, log_weights = _better_half(advantages / scale, (aimed - taken).clamp(max=0.0), mask)
    psi = multipliers.weights(best.values, log_weights)
    pg = -(psi * learner[mask][best.indices]).sum()  # a sum: its weights add up to 1
    penalty, pressure, metrics = _limits(config, multipliers, target, policy, mask)
    baseline = baseline_loss(values=values[:-1] / scale, targets=targets / scale, mask=mask, reduction="mean")
    total = pg + penalty + config.baseline_cost * baseline
    metrics |= lag_metrics(behaviour, policy, learner - taken, mask)
    metrics |= {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "eta": multipliers.eta.value.detach().clone(),
        "eta_kl": (psi * (psi.log() - log_weights.log_softmax(0))).nansum(),  # 0 log 0 is 0
        "baseline_loss": baseline.detach(),
        "entropy": masked_reduce(policy.entropy().detach(), mask, "mean"),
        "explained_variance": explained_variance(targets, values.detach()[:-1], mask),
        "valid_fraction": mask.float().mean(),
    }
    return VmpoLoss(total, multipliers.temperature_loss(best.values, log_weights) + pressure, targets, metrics)


def _better_half(advantages: Tensor, log_weights: Tensor, mask: Tensor) -> tuple[torch.return_types.topk, Tensor]:
    """The half of the valid steps with the largest advantages, and their log w.

    A threshold at the median, instead of a number of steps, would drop or add those of equal rank.
    """
    valid = advantages[mask]
    best = valid.topk(max(1, len(valid) // 2))
    return best, log_weights[mask][best.indices]


def _limits(
    config: VMPOConfig, multipliers: Multipliers, old: Distribution, new: Distribution, mask: Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """Equation 5, over all valid steps, summed over what is limited: for the network, and for the weights.

    With a weight of 0 divergences are only measured.
    """
    zero = torch.zeros_like(multipliers.eta.value)
    penalty, pressure, metrics = zero, zero, Metrics()
    for (name, dual), divergence in zip(multipliers.alphas.items(), old.kl_parts(new), strict=True):
        measured = masked_reduce(divergence, mask, "mean")
        metrics[name] = measured.detach()
        if config.kl_weight:
            penalty, pressure = penalty + dual.penalty(measured), pressure + dual.loss(measured)
            metrics[f"{name}_weight"] = dual.value.detach().clone()
    return penalty, pressure, metrics
