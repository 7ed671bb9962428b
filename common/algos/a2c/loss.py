"""A2C's loss: policy gradient with the advantages of n-step returns (Mnih et al. 2016, section 4).

Steps that another policy took are corrected by V-trace (Espeholt et al. 2018). On policy its ratios are 1, and what is
left are the n-step returns.
"""

from __future__ import annotations

from torch import Tensor

from zerobeast.common.algos.a2c.config import A2CConfig
from zerobeast.common.algos.actor_critic import lag_metrics, three_terms, unroll
from zerobeast.common.algos.protocol import Batch, Metrics
from zerobeast.common.algos.returns import discounts, shaped
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.ops.distributions import Family
from zerobeast.common.ops.losses import normalized
from zerobeast.common.ops.vtrace import vtrace


def loss(config: A2CConfig, family: Family, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
    """The weighted sum of the three terms, and its parts."""
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
        trace_decay=config.trace_decay,
    )
    advantages = normalized(targets.advantages, mask) if config.normalize_advantages else targets.advantages
    total, metrics = three_terms(
        config,
        policy,
        log_probs=taken,
        advantages=targets.weights * advantages,
        values=values[:-1],
        targets=targets.vs,
        mask=mask,
        entropy_cost=config.entropy_cost,
    )
    return total, metrics | lag_metrics(behaviour, policy, log_rhos, mask)
