"""V-MPO: a copy of the policy that acts is trained, and replaces the policy periodically.

The loss imitates the better half of the actions, within limits (Song et al. 2019, section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zerobeast.common.wire import ArraySpace
from zerobeast.rl.algos.policy_gradient.actor_critic import (
    ActorCritic,
    ActorCriticLearning,
    lag_metrics,
    policy_logits,
    unroll,
)
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.vmpo.config import VMPOConfig
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import Dual, GradientDescent, Target, estimate, explained_variance, summarize_steps
from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.ops.losses import baseline_loss, masked_reduce, valid_share
from zerobeast.rl.protocol import Learned, Metrics


class VMPO(ActorCritic[VMPOConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> VMPOLearning:
        """Policy and multipliers each have an optimiser, so that neither's rate or clip affects the other."""
        return VMPOLearning(self, net)


class VMPOLearning(ActorCriticLearning[VMPOConfig]):
    """See `ActorCriticLearning`. A copy of the policy that acts is trained."""

    def __init__(self, algorithm: VMPO, net: PolicyAndValue) -> None:
        self.trained = deepcopy(net)
        super().__init__(algorithm, self.trained)
        config = algorithm.settings
        self._target = Target(source=self.trained, copy=net, period=config.target_period, acts=True)
        real = isinstance(algorithm.env.action, ArraySpace) and algorithm.env.action.kind == "box"
        self._multipliers = Multipliers(config, real=real).to(net.device)
        constant = {"optimizer": "adam", "learning_rate": config.multiplier_rate, "schedule": "constant"}
        pace = config.model_copy(update={**constant, "max_grad_norm": math.inf})
        self._pace = GradientDescent(algorithm.config, pace, self._multipliers.parameters())
        self.parts |= {"target": self._target, "multipliers": self._multipliers, "multipliers_optimizer": self._pace}
        self._version = 0  #: of the policy that acts, as in `Batch.policy_version`

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """One step of each optimiser."""
        if not ranks.sum_over_ranks(
            self.family.select_decisions(batch.mask, batch.legal).sum(), "transitions with a choice"
        ):
            return summarize_steps([])
        online = self.trained
        with self.descent.autocast():
            target_logits = self._target_logits(batch)
            found = loss(self.settings, self.family, online, self._multipliers, batch, target_logits)
        step = self.descent.step(found.policy, agent_steps, batch.mask)
        if step.applied:
            self._pace.step(found.multipliers, agent_steps, batch.mask)
            self._multipliers.project()
            online.observe_targets(found.targets, batch.mask, batch.task)
            self.observe(batch)
        changed = step.applied and self._target.count()
        self._version += changed
        return summarize_steps([(step, found.metrics)])._replace(changed=changed)

    def state(self) -> dict[str, Any]:
        """The training state, for a checkpoint."""
        return {**super().state(), "version": self._version}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().load(state)
        self._version = state["version"]

    def _target_logits(self, batch: Batch) -> Tensor:
        """[T, B, A] of the policy that acts now: taken from rollouts of its version, and computed for all others."""
        others = (batch.policy_version != self._version).any(0).nonzero().squeeze(-1)
        if not len(others):
            return batch.extras["logits"]
        return batch.extras["logits"].index_copy(1, others, policy_logits(self._target.copy, batch.pick(others)))


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

    With several ranks, their means weighed by valid transitions are the losses of the whole batch: the better half is
    that of all ranks' actions. What concerns the policy is over the steps that had a choice.

    The target stands in for the behaviour policy: steps of an older target are weighted by their ratio to the current
    one, which is 1 if the current target acted.

    Args:
      config: of V-MPO.
      family: of the policy's distributions.
      net: the network to train, which also gives the state values.
      multipliers: trained beside it.
      batch: from any behaviour policy mu, of the same shape on all ranks, one of which has a valid transition with
        a choice.
      target_logits: [T, B, A] of the target, which the new policy stays near, without gradient.
    """
    logits, values = unroll(net, batch)
    answers = (logits, target_logits, batch.extras["logits"])
    policy, target, behaviour = (family.of(each, batch.legal) for each in answers)
    actions, mask, choice = batch.actions, batch.mask, family.select_decisions(batch.mask, batch.legal)
    learner, aimed, taken = (each.log_prob(actions) for each in (policy, target, behaviour))
    targets, advantages, _ = estimate(config, batch, values.detach(), aimed - taken)  # w takes the place of `weights`
    scale = net.value_scale(batch.task)
    own = torch.stack([advantages / scale, (aimed - taken).clamp(max=0.0), choice.float(), mask.float()])
    every = ranks.gather(own, "advantages").transpose(0, 1).flatten(1)
    valid = every[2] > 0
    scores, weights = every[:2, valid]
    best = scores.topk(max(1, len(scores) // 2))  # a threshold at the median would drop or add steps equal to it
    log_weights = weights[best.indices]
    psi = multipliers.weights(best.values, log_weights)
    places = best.indices - valid[: ranks.rank() * mask.numel()].sum()  # among the steps of this rank
    ours = learner[choice]
    here = (places >= 0) & (places < len(ours))
    pg = -(psi[here] * ours[places[here]]).sum()  # a sum, because psi adds up to 1
    pg = pg * (int(every[3].sum()) / max(1, int(mask.sum())))  # and remains one when ranks' losses are weighed
    penalty, pressure, metrics = _limits(config, multipliers, target.kl_parts(policy), mask, choice)
    baseline = baseline_loss(values=values[:-1] / scale, targets=targets / scale, mask=mask, reduction="mean")
    total = pg + penalty + config.baseline_cost * baseline
    metrics |= lag_metrics(behaviour, policy, learner - taken, choice)
    metrics |= {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "eta": multipliers.eta.value.detach().clone(),
        "eta_kl": (psi * (psi.log() - log_weights.log_softmax(0))).nansum(),  # 0 log 0 is 0
        "baseline_loss": baseline.detach(),
        "entropy": masked_reduce(policy.entropy().detach(), choice, "mean"),
        "explained_variance": explained_variance(targets, values.detach()[:-1], mask),
        "valid_fraction": mask.float().mean(),
    }
    return VmpoLoss(total, multipliers.temperature_loss(best.values, log_weights) + pressure, targets, metrics)


def _limits(
    config: VMPOConfig, multipliers: Multipliers, divergences: Sequence[Tensor], mask: Tensor, choice: Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """Equation 5 over all steps with a choice, summed over limited divergences: for the network, and for the weights.

    With a weight of 0, divergences are only measured.
    """
    zero = torch.zeros_like(multipliers.eta.value)
    penalty, pressure, metrics = zero, zero, Metrics()
    for (name, dual), divergence in zip(multipliers.alphas.items(), divergences, strict=True):
        measured = valid_share(choice, mask, "mean") * masked_reduce(divergence, choice, "mean")
        metrics[name] = measured.detach()
        if config.kl_weight:
            penalty, pressure = penalty + dual.penalty(measured), pressure + dual.loss(measured)
            metrics[f"{name}_weight"] = dual.value.detach().clone()
    return penalty, pressure, metrics


class Multipliers(nn.Module):
    """What is learned besides the policy: a temperature, and the weights of divergences (section 4).

    Args:
      config: their initial values and limits.
      real: whether actions are continuous, so that means and deviations have a limit each.
    """

    def __init__(self, config: VMPOConfig, *, real: bool) -> None:
        super().__init__()
        limits = {"kl_mean": config.kl_mean_limit, "kl_std": config.kl_std_limit} if real else {"kl": config.kl_limit}
        self.eta = Dual(config.eta, config.eta_limit)
        self.alphas = {name: Dual(config.kl_weight, limit) for name, limit in limits.items()}  #: as in `kl_parts`
        for name, dual in self.alphas.items():
            self.add_module(name, dual)

    def weights(self, advantages: Tensor, log_weights: Tensor) -> Tensor:
        """psi (equation 3): how much each of n actions is imitated; [n], without gradient.

        Args:
          advantages: [n].
          log_weights: [n] log w, the importance weight of each action: 0 if it was drawn from the target.
        """
        return (advantages / self.eta.value + log_weights).softmax(0).detach()

    def temperature_loss(self, advantages: Tensor, log_weights: Tensor) -> Tensor:
        """Equation 4: at its minimum, the KL of psi from normalised w is at its limit. Arguments as for `weights`.

        The largest advantage is factored out, so that large numbers do not cancel at a low temperature.
        """
        largest, eta = advantages.max(), self.eta.value
        log_mean = ((advantages - largest) / eta + log_weights).logsumexp(0) - log_weights.logsumexp(0)
        return eta * (self.eta.limit + log_mean) + largest

    def project(self) -> None:
        """Keep them positive; call after each optimiser step."""
        for dual in (self.eta, *self.alphas.values()):
            dual.project()
