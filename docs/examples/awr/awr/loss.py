"""Advantage-weighted regression's loss (Peng et al. 2019, algorithm 1), on fresh batches and normalised advantages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from awr.config import AWRConfig
from zerobeast.rl.algos.policy_gradient.actor_critic import combine_terms, unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import estimate
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.ops.losses import policy_gradient_loss, standardize
from zerobeast.rl.protocol import Metrics


def loss(config: AWRConfig, family: Family, net: PolicyAndValue, batch: Batch) -> tuple[Tensor, Metrics]:
    """Regression of values on TD(lambda), and of the policy on its actions, weighted by exp(advantage / beta)."""
    logits, values = unroll(net, batch)
    policy, mask = family.of(logits, batch.legal), batch.mask
    choice = family.select_decisions(mask, batch.legal)
    targets = estimate(config, batch, values.detach(), torch.zeros_like(values[1:])).vs
    advantages = standardize(targets - values.detach()[:-1], choice)
    weights = (advantages / config.temperature).clamp(max=math.log(config.max_weight)).exp()
    taken = policy.log_prob(batch.actions)
    return combine_terms(
        config,
        policy,
        pg=policy_gradient_loss(log_probs=taken, advantages=weights, mask=choice, reduction="mean"),
        values=values[:-1],
        targets=targets,
        masks=(mask, choice),
        entropy_cost=config.entropy_cost,
    )
