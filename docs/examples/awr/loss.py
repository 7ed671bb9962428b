"""Advantage-weighted regression's loss (Peng et al. 2019, algorithm 1), on fresh batches and normalised advantages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zerobeast.common.algos.actor_critic import three_terms, unroll
from zerobeast.common.algos.awr.config import AWRConfig
from zerobeast.common.algos.protocol import Batch, Metrics
from zerobeast.common.algos.returns import discounts, shaped
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.ops.distributions import Family
from zerobeast.common.ops.losses import normalized
from zerobeast.common.ops.vtrace import vtrace


def loss(config: AWRConfig, family: Family, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
    """Regression of values on TD(lambda), and of the policy on its actions with weights exp(advantage / beta)."""
    logits, values = unroll(net, batch)
    policy, rewards = family.of(logits), shaped(batch.reward[1:], config)
    targets = vtrace(
        log_rhos=torch.zeros_like(rewards),
        discounts=discounts(batch, config.discount),
        rewards=rewards,
        values=values.detach(),
        mask=batch.mask,
        trace_decay=config.trace_decay,
    ).vs
    advantages = normalized(targets - values.detach()[:-1], batch.mask)
    weights = (advantages / config.temperature).clamp(max=math.log(config.max_weight)).exp()
    return three_terms(
        config,
        policy,
        log_probs=policy.log_prob(batch.last_action[1:]),
        advantages=weights,
        values=values[:-1],
        targets=targets,
        mask=batch.mask,
        entropy_cost=config.entropy_cost,
    )
