"""IMPALA's loss: V-trace policy gradient, value regression, entropy bonus (Espeholt et al. 2018, section 4.2)."""

from __future__ import annotations

from torch import Tensor

from zerobeast.common.algos.actor_critic import ActorCriticLoss, lag_metrics, three_terms, unroll
from zerobeast.common.algos.impala.config import ImpalaConfig
from zerobeast.common.algos.protocol import Batch
from zerobeast.common.algos.returns import discounts, shaped
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.ops.distributions import Family
from zerobeast.common.ops.losses import normalized
from zerobeast.common.ops.vtrace import vtrace


def loss(
    config: ImpalaConfig, family: Family, net: AgentNet, batch: Batch, *, entropy_cost: float | Tensor
) -> ActorCriticLoss:
    """The weighted sum of the three terms, and its parts.

    With PopArt errors of values and advantages count in units of their task's deviation (Hessel et al. 2018, equations
    9 to 11), whatever the size of its rewards.

    Args:
      config: of IMPALA.
      family: of the policy's distributions.
      net: the policy.
      batch: of whatever behaviour.
      entropy_cost: the weight of the entropy bonus, without gradient: that of `config`, or one that is learned.
    """
    logits, values = unroll(net, batch)
    policy, actions, mask = family.of(logits), batch.last_action[1:], batch.mask
    taken = policy.log_prob(actions)
    behaviour = family.of(batch.behaviour_logits)
    log_rhos = taken.detach() - behaviour.log_prob(actions)
    targets = vtrace(
        log_rhos=log_rhos,
        discounts=discounts(batch, config.discount),
        rewards=shaped(batch.reward[1:], config),
        values=values.detach(),
        mask=mask,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.pg_rho_bar,
        trace_decay=config.trace_decay,
    )
    scale = net.value_scale(batch.task)
    advantages = targets.advantages / scale
    if config.normalize_advantages:
        advantages = normalized(advantages, mask)
    total, metrics = three_terms(
        config,
        policy,
        log_probs=taken,
        advantages=targets.weights * advantages,
        values=values[:-1] / scale,
        targets=targets.vs / scale,
        mask=mask,
        entropy_cost=entropy_cost,
    )
    return ActorCriticLoss(total, targets.vs, metrics | lag_metrics(behaviour, policy, log_rhos, mask))
