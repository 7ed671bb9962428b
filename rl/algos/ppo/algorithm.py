"""PPO: several epochs of minibatches on every batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCritic, lag_metrics, steps
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.config import PPOConfig
from zerobeast.rl.algos.ppo.loss import loss
from zerobeast.rl.algos.ppo.samples import Samples
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, OneBatch, Step, estimate, explained_variance, summary
from zerobeast.rl.learning.returns import ReturnScale
from zerobeast.rl.ops.losses import normalized
from zerobeast.rl.ops.vtrace import VTrace
from zerobeast.rl.protocol import Learned, Metrics


class PPO(ActorCritic[PPOConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> PPOLearning:
        """Several epochs of minibatches on every batch."""
        return PPOLearning(self, net)


class PPOLearning(OneBatch):
    """See `zerobeast.rl.protocol.Learning`.

    `minibatches` refers to a full batch of `learner.batch_size` rollouts; a smaller batch makes fewer of the same size.
    Every batch is learned from with `settings`, which a subclass may replace before it, for a schedule.

    Args:
      algorithm: provides the settings and the distributions.
      net: the policy to train.
    """

    def __init__(self, algorithm: PPO, net: PolicyAndValue) -> None:
        self.settings = settings = algorithm.settings
        self._family, self._net = algorithm.family, net
        self._descent = GradientDescent(algorithm.config, settings, net.parameters())
        self._minibatches_per_rollout = settings.minibatches / algorithm.config.learner.batch_size
        self._scale = ReturnScale().to(net.device) if settings.normalize_returns else None

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and stop early if the divergence exceeds `target_kl`."""
        samples, metrics = self._prepare(batch)
        minibatches = max(1, round(batch.mask.shape[1] * self._minibatches_per_rollout))
        learned = summary(list(self._steps(samples, minibatches, agent_steps)))
        self._net.observe(steps(batch.obs, slice(-1)))  # not earlier: the loss compares with the policy that acted
        return learned._replace(metrics={**learned.metrics, **metrics})

    def state(self) -> dict[str, Any]:
        """The training state, for a checkpoint."""
        scale = None if self._scale is None else self._scale.state_dict()
        return {"optimizer": self._descent.state(), "return_scale": scale}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._descent.load(state["optimizer"])
        if self._scale is not None and state["return_scale"] is not None:
            self._scale.load_state_dict(state["return_scale"])

    def _steps(self, samples: Samples, minibatches: int, agent_steps: int) -> Iterator[tuple[Step, Metrics]]:
        for _ in range(self.settings.epochs):
            for minibatch in samples.minibatches(minibatches):
                with self._descent.autocast():
                    total, terms = loss(self.settings, self._family, self._net, minibatch)
                if 0.0 < self.settings.target_kl < terms["kl"]:
                    return
                yield self._descent.step(total, agent_steps), terms

    @torch.no_grad()
    def _prepare(self, batch: Batch) -> tuple[Samples, Metrics]:
        """The samples for the epochs, and metrics of the batch as a whole."""
        with self._descent.autocast():
            (logits, values), _ = self._net(batch.inputs, batch.core_state)
        actions, mask = batch.actions, batch.mask
        behaviour, policy = (self._family.of(each, batch.legal) for each in (batch.extras["logits"], logits[:-1]))
        taken = behaviour.log_prob(actions)
        log_rhos = policy.log_prob(actions) - taken
        targets, advantages, _ = self._estimate(batch, values, log_rhos)
        samples = Samples(
            inputs=steps(batch.inputs, slice(-1)),
            actions=actions,
            behaviour=taken,
            logits=logits[:-1],
            values=values[:-1],
            targets=targets,
            advantages=normalized(advantages, mask) if self.settings.normalize_advantages else advantages,
            mask=mask,
            core_state=batch.core_state,
        )
        metrics = {
            **lag_metrics(behaviour, policy, log_rhos, mask),
            "explained_variance": explained_variance(targets, values[:-1], mask),
            "valid_fraction": mask.float().mean(),
        }
        return samples if self._net.core_size else samples.single_steps(), metrics

    def _estimate(self, batch: Batch, values: Tensor, log_rhos: Tensor) -> VTrace:
        """Value targets and advantages, [T, B] each: GAE(lambda) if `vtrace` is off."""
        log_rhos = log_rhos if self.settings.vtrace else torch.zeros_like(log_rhos)
        estimated = partial(estimate, self.settings, batch, values, log_rhos)
        if (scale := self._scale) is None:
            return estimated()
        if not scale.count:
            scale.observe(estimated().vs[batch.mask])  # so that the first batch, too, is in units of its own returns
        scaled = estimated(scale=scale)
        scale.observe(scale.deviation * scaled.vs[batch.mask])
        return scaled
