"""IMPACT: learn from old batches as well as new ones, staying near a target that is replaced periodically.

The loss is a clipped surrogate against the target, value regression and an entropy bonus (Luo et al. 2020, section 3).
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from zerobeast.rl.algos.impact.config import ImpactConfig
from zerobeast.rl.algos.policy_gradient.actor_critic import (
    ActorCritic,
    ActorCriticLearning,
    combine_terms,
    lag_metrics,
    policy_logits,
    unroll,
)
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import Circular, Step, Target, estimate, summarize_steps
from zerobeast.rl.ops import losses, ranks
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.protocol import Learned, Metrics

FLOOR, CEILING = 0.01, 100.0  #: of the divergence's weight, relative to its initial value: a dozen targets lead back
TARGET_EXTRA = "target_logits"  #: extra of a held batch: [T, B, A], from its first use until the target changes


class Impact(ActorCritic[ImpactConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> ImpactLearning:
        """Several steps per batch, spread over the batches that follow it."""
        return ImpactLearning(self, net)


class ImpactLearning(ActorCriticLearning[ImpactConfig]):
    """See `ActorCriticLearning`. Held batches store each frame once."""

    def __init__(self, algorithm: Impact, net: PolicyAndValue) -> None:
        super().__init__(algorithm, net)
        config, self._frame_stack = algorithm.settings, algorithm.env.frame_stack
        period = config.batches * config.uses  # section 4.1.1
        self._target = Target(source=net, copy=deepcopy(net).requires_grad_(requires_grad=False), period=period)
        self._circular = Circular(config.batches, config.uses, net.device)
        self._weight = DivergenceWeight(config.kl_cost, config.kl_target)
        self.parts |= {"target": self._target, "batches": self._circular, "divergence_weight": self._weight}

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and from earlier ones."""
        due = self._circular.add(batch.pack(self._frame_stack))
        learned = summarize_steps([self._step(kept.unpack(), agent_steps) for kept in due])
        self.observe(batch)
        return learned

    def _step(self, batch: Batch, agent_steps: int) -> tuple[Step, Metrics]:
        cost = self._weight.value
        with self.descent.autocast():
            if TARGET_EXTRA not in batch.extras:  # which are those of the held batch
                batch.extras[TARGET_EXTRA] = policy_logits(self._target.copy, batch)
            total, terms = loss(self.settings, self.family, self.net, batch, batch.extras[TARGET_EXTRA], kl_cost=cost)
        step = self.descent.step(total, agent_steps, batch.mask)
        if step.applied:
            choice = self.family.select_decisions(batch.mask, batch.legal)
            self._weight.observe(float(ranks.mean_over_ranks(terms["kl"], choice, "divergence")))
            if self._target.count():
                self._weight.adapt()
                for held in self._circular.held:
                    held.extras.pop(TARGET_EXTRA, None)  # the old target's
        return step, terms


def log_ratio(learner: Tensor, target: Tensor, behaviour: Tensor, rho: float) -> Tensor:
    """log R of R = min(mu / pi_target, rho) pi / mu = pi / max(pi_target, mu / rho), from three log-probabilities.

    If mu is near the target, R is PPO's ratio to the target; if an action has become much less likely since it was
    chosen, mu keeps R from growing.
    """
    return learner - torch.maximum(target, behaviour - math.log(rho))


def loss(
    config: ImpactConfig, family: Family, net: PolicyAndValue, batch: Batch, target_logits: Tensor, *, kl_cost: float
) -> tuple[Tensor, Metrics]:
    """The weighted sum of the terms, and its parts, all means over valid steps.

    Args:
      config: of IMPACT.
      family: of the policy's distributions.
      net: the policy that learns, and its values.
      batch: from any behaviour policy mu.
      target_logits: [T, B, A] of the target on this batch, without gradient.
      kl_cost: weight of KL(target || policy).
    """
    logits, values = unroll(net, batch)
    answers = (logits, target_logits, batch.extras["logits"])
    policy, target, behaviour = (family.of(each, batch.legal) for each in answers)
    actions, mask, choice = batch.actions, batch.mask, family.select_decisions(batch.mask, batch.legal)
    learner, aimed, taken = (each.log_prob(actions) for each in (policy, target, behaviour))
    # the target stands in for the policy (section 3.1): estimates follow the values, not every step of it
    vs, advantages, _ = estimate(config, batch, values.detach(), aimed - taken)  # R takes the place of `weights`
    log_ratios = log_ratio(learner, aimed, taken, config.rho)
    if config.normalize_advantages:
        advantages = losses.standardize(advantages, choice)
    pg = losses.clipped_surrogate_loss(
        log_ratios=log_ratios, advantages=advantages, clip=config.clip, mask=choice, reduction="mean"
    )
    total, metrics = combine_terms(
        config, policy, pg=pg, values=values[:-1], targets=vs, masks=(mask, choice), entropy_cost=config.entropy_cost
    )
    kl = losses.masked_reduce(target.kl(policy), choice, "mean")
    if kl_cost:
        total = total + losses.valid_share(choice, mask, "mean") * kl_cost * kl
    clipped = ((log_ratios.detach().exp() - 1).abs() > config.clip).float()
    metrics |= {
        "total": total.detach(),
        "kl": kl.detach(),
        "kl_cost": torch.full_like(kl.detach(), kl_cost),
        "clipped": losses.masked_reduce(clipped, choice, "mean"),
    }
    return total, metrics | lag_metrics(behaviour, policy, learner - taken, choice)


class DivergenceWeight:
    """Adaptive weight of KL(target || policy), set once per target (Schulman et al. 2017, section 4; numbers: RLlib).

    Adapts to the mean divergence over all steps of one target, as RLlib does over an iteration. One step's divergence
    is not representative: it is 0 in a target's first step and largest in its last, and differs by batch.

    Args:
      initial: the weight at the start; 0: there is none, and it never adapts.
      aim: the mean divergence that it should result in.
    """

    def __init__(self, initial: float, aim: float) -> None:
        self._initial, self._aim = initial, aim
        self._scale = 1.0  #: factor on the initial weight
        self._sum, self._count = 0.0, 0  #: of divergences since the target was replaced

    @property
    def value(self) -> float:
        """The weight."""
        return self._initial * self._scale

    def observe(self, kl: float) -> None:
        """Add the divergence of a step."""
        self._sum += kl
        self._count += 1

    def adapt(self) -> None:
        """Call when the target is replaced: change the weight if the mean was above twice or below half its aim."""
        mean = self._sum / self._count
        self._sum, self._count = 0.0, 0
        if mean > 2 * self._aim:
            self._scale = min(1.5 * self._scale, CEILING)
        elif mean < 0.5 * self._aim:
            self._scale = max(0.5 * self._scale, FLOOR)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"scale": self._scale, "sum": self._sum, "count": self._count}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._scale = min(max(float(state["scale"]), FLOOR), CEILING)
        self._sum, self._count = float(state["sum"]), int(state["count"])
