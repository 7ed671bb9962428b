"""IMPALA's loss: V-trace policy gradient, value regression, entropy bonus (Espeholt et al. 2018, section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.actor_critic import unroll
from common.algos.impala.config import ImpalaConfig
from common.algos.protocol import Batch, Metrics
from common.nets.agent import AgentNet
from common.ops import losses
from common.ops.distributions import Family
from common.ops.vtrace import VTrace, vtrace


def loss(config: ImpalaConfig, family: Family, net: AgentNet, batch: Batch) -> tuple[Tensor, Metrics]:
    """The weighted sum of the three terms, and its parts."""
    logits, values = unroll(net, batch)
    policy, actions = family.of(logits), batch.last_action[1:]
    taken = policy.log_prob(actions)
    behaviour = family.of(batch.behaviour_logits).log_prob(actions)
    targets = vtrace(
        log_rhos=taken.detach() - behaviour,
        discounts=(~batch.terminated[1:]).float() * config.discount,
        rewards=_shaped(batch.reward[1:], config),
        values=values.detach(),
        mask=batch.mask,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.pg_rho_bar,
        trace_decay=config.trace_decay,
    )
    entropies = policy.entropy()
    mask, how = batch.mask, config.reduction
    pg = losses.policy_gradient_loss(log_probs=taken, advantages=targets.pg_advantages, mask=mask, reduction=how)
    baseline = losses.baseline_loss(values=values[:-1], targets=targets.vs, mask=mask, reduction=how)
    entropy = losses.entropy_loss(entropies=entropies, mask=mask, reduction=how)
    total = pg + config.baseline_cost * baseline + config.entropy_cost * entropy
    metrics = {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "baseline_loss": baseline.detach(),
        "entropy": losses.masked_reduce(entropies.detach(), mask, "mean"),
        **_off_policy(targets.rhos, mask, config.rho_bar),
        "explained_variance": _explained_variance(targets, values.detach()[:-1], mask),
        "valid_fraction": mask.float().mean(),
    }
    return total, metrics


def _shaped(rewards: Tensor, config: ImpalaConfig) -> Tensor:
    scaled = rewards * config.reward_scale
    return scaled.clamp(-1.0, 1.0) if config.reward_clipping == "abs_one" else scaled


def _off_policy(rhos: Tensor, mask: Tensor, rho_bar: float) -> Metrics:
    """How far the behaviour was from the policy: the mean ratio, and the share that was clipped."""
    return {
        "rho_mean": losses.masked_reduce(rhos, mask, "mean"),
        "rho_clipped": losses.masked_reduce((rhos > rho_bar).float(), mask, "mean"),
    }


def _explained_variance(targets: VTrace, values: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(vs - V) / Var(vs) over valid transitions; 0 where the targets do not vary."""
    target_variance = _variance(targets.vs, mask)
    explained = 1.0 - _variance(targets.vs - values, mask) / target_variance
    return torch.where(target_variance == 0.0, 0.0, explained)


def _variance(entries: Tensor, mask: Tensor) -> Tensor:
    mean = losses.masked_reduce(entries, mask, "mean")
    return losses.masked_reduce((entries - mean).square(), mask, "mean")
