"""A2C's loss: policy gradient with the advantages of n-step returns (Mnih et al. 2016, section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.a2c.config import A2CConfig
from common.algos.actor_critic import three_terms, unroll
from common.algos.protocol import Batch, Metrics
from common.algos.returns import discounts, shaped
from common.nets.agent import AgentNet
from common.ops.distributions import Family
from common.ops.losses import normalized
from common.ops.vtrace import vtrace


def loss(config: A2CConfig, family: Family, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
    """The weighted sum of the three terms, and its parts. Whoever acted is taken for the policy that learns."""
    logits, values = unroll(net, batch)
    policy, mask = family.of(logits), batch.mask
    rewards = shaped(batch.reward[1:], config)
    targets = vtrace(
        log_rhos=torch.zeros_like(rewards),
        discounts=discounts(batch, config.discount),
        rewards=rewards,
        values=values.detach(),
        mask=mask,
        trace_decay=config.trace_decay,
    )
    advantages = targets.vs - values.detach()[:-1]
    return three_terms(
        config,
        policy,
        log_probs=policy.log_prob(batch.last_action[1:]),
        advantages=normalized(advantages, mask) if config.normalize_advantages else advantages,
        values=values[:-1],
        targets=targets.vs,
        mask=mask,
        entropy_cost=config.entropy_cost,
    )
