"""V-MPO's loss: imitate the better half of the actions, within limits (Song et al. 2019, section 4.1)."""

from typing import NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.algos.policy_gradient.actor_critic import lag_metrics, unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.vmpo.config import VMPOConfig
from zerobeast.rl.algos.vmpo.multipliers import Multipliers
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import estimate, explained_variance
from zerobeast.rl.ops.distributions import Distribution, Family
from zerobeast.rl.ops.losses import baseline_loss, masked_reduce
from zerobeast.rl.protocol import Metrics


class VmpoLoss(NamedTuple):
    """The result of one pass over a batch."""

    policy: Tensor  #: [], imitation, divergence and value regression: for the network
    multipliers: Tensor  #: [], for temperature and weights
    targets: Tensor  #: [T, B] value targets, without gradient
    metrics: Metrics


def loss(
    config: VMPOConfig,
    family: Family,
    net: PolicyAndValue,
    multipliers: Multipliers,
    batch: Batch,
    target_logits: Tensor,
) -> VmpoLoss:
    """Two losses, one for the network and one for the multipliers.

    The target stands in for the behaviour policy: steps of an older target are weighted by their ratio to the current
    one, which is 1 if the current target acted.

    Args:
      config: of V-MPO.
      family: of the policy's distributions.
      net: the network to train, which also gives the state values.
      multipliers: trained beside it.
      batch: with at least one valid transition, from any behaviour policy mu.
      target_logits: [T, B, A] of the target, which the new policy stays near, without gradient.
    """
    logits, values = unroll(net, batch)
    answers = (logits, target_logits, batch.extras["logits"])
    policy, target, behaviour = (family.of(each, batch.legal) for each in answers)
    actions, mask = batch.actions, batch.mask
    learner, aimed, taken = (each.log_prob(actions) for each in (policy, target, behaviour))
    targets, advantages, _ = estimate(config, batch, values.detach(), aimed - taken)  # w takes the place of `weights`
    scale = net.value_scale(batch.task)
    best, log_weights = _better_half(advantages / scale, (aimed - taken).clamp(max=0.0), mask)
    psi = multipliers.weights(best.values, log_weights)
    pg = -(psi * learner[mask][best.indices]).sum()  # a sum, because psi adds up to 1
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

    A threshold at the median, instead of a number of steps, would drop or add steps with equal advantages.
    """
    valid = advantages[mask]
    best = valid.topk(max(1, len(valid) // 2))
    return best, log_weights[mask][best.indices]


def _limits(
    config: VMPOConfig, multipliers: Multipliers, old: Distribution, new: Distribution, mask: Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """Equation 5 over all valid steps, summed over the limited divergences: for the network, and for the weights.

    With a weight of 0, divergences are only measured.
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
