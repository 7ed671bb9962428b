"""How PPO learns: several epochs of minibatches on every batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zerobeast.common.algos.actor_critic import lag_metrics
from zerobeast.common.algos.gradient_descent import GradientDescent, Step, summary
from zerobeast.common.algos.ppo.config import PPOConfig
from zerobeast.common.algos.ppo.loss import loss
from zerobeast.common.algos.ppo.samples import Samples
from zerobeast.common.algos.protocol import Batch, Learned, Metrics
from zerobeast.common.algos.returns import ReturnScale, discounts, explained_variance, shaped
from zerobeast.common.nets.agent import AgentNet, StepInput
from zerobeast.common.ops.distributions import Family
from zerobeast.common.ops.losses import normalized
from zerobeast.common.ops.vtrace import VTrace, vtrace


class PPOLearning:
    """See `zerobeast.common.algos.protocol.Learning`.

    Args:
      config: of PPO.
      family: of the policy's distributions.
      net: the policy, which is what is trained.
      descent: over its parameters.
      batch_size: rollouts of a full batch, which makes `minibatches`; one with fewer makes fewer of the same size.
    """

    def __init__(
        self, config: PPOConfig, family: Family, net: AgentNet, descent: GradientDescent, batch_size: int
    ) -> None:
        self._config, self._family, self._net, self._descent = config, family, net, descent
        self._minibatches_per_rollout = config.minibatches / batch_size
        self._scale = ReturnScale().to(net.value.weight.device) if config.normalize_returns else None

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, up to the divergence that is allowed."""
        samples, metrics = self._prepare(batch)
        minibatches = max(1, round(batch.mask.shape[1] * self._minibatches_per_rollout))
        learned = summary(list(self._steps(samples, minibatches, agent_steps)))
        self._net.observe(batch.obs[:-1])  # not before: the loss compares with the policy that acted
        return learned._replace(metrics={**learned.metrics, **metrics})

    def state(self) -> dict[str, Any]:
        """What training has to remember."""
        scale = None if self._scale is None else self._scale.state_dict()
        return {"optimizer": self._descent.state(), "return_scale": scale}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._descent.load(state["optimizer"])
        if self._scale is not None and state["return_scale"] is not None:
            self._scale.load_state_dict(state["return_scale"])

    def _steps(self, samples: Samples, minibatches: int, agent_steps: int) -> Iterator[tuple[Step, Metrics]]:
        for _ in range(self._config.epochs):
            for minibatch in samples.minibatches(minibatches):
                with self._descent.autocast():
                    total, terms = loss(self._config, self._family, self._net, minibatch)
                if 0.0 < self._config.target_kl < terms["kl"]:
                    return
                yield self._descent.step(total, agent_steps), terms

    @torch.no_grad()
    def _prepare(self, batch: Batch) -> tuple[Samples, Metrics]:
        """What the epochs need, and curves of the batch as a whole."""
        inputs = StepInput(batch.obs, batch.last_action, batch.reward, batch.first)
        with self._descent.autocast():
            (logits, values), _ = self._net(inputs, batch.core_state)
        actions, mask = batch.last_action[1:], batch.mask
        behaviour, policy = self._family.of(batch.behaviour_logits), self._family.of(logits[:-1])
        taken = behaviour.log_prob(actions)
        log_rhos = policy.log_prob(actions) - taken
        targets, advantages, _ = self._estimate(batch, values, log_rhos)
        samples = Samples(
            obs=batch.obs[:-1],
            last_action=batch.last_action[:-1],
            reward=batch.reward[:-1],
            first=batch.first[:-1],
            actions=actions,
            behaviour=taken,
            logits=logits[:-1],
            values=values[:-1],
            targets=targets,
            advantages=normalized(advantages, mask) if self._config.normalize_advantages else advantages,
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
        """Targets of the values, and advantages, [T, B] each: GAE(lambda), where `vtrace` is off."""
        config, scale, mask = self._config, self._scale, batch.mask
        gammas = discounts(batch, config.discount)
        rewards = shaped(batch.reward[1:], config)

        def estimate() -> VTrace:
            return vtrace(
                log_rhos=log_rhos if config.vtrace else torch.zeros_like(log_rhos),
                discounts=gammas,
                rewards=rewards,
                values=values,
                mask=mask,
                rho_bar=config.rho_bar,
                c_bar=config.c_bar,
                trace_decay=config.trace_decay,
            )

        if scale is not None:
            if not scale.count:
                scale.observe(estimate().vs[mask])  # so that the first batch too is learned from in its own units
            rewards = scale(rewards)
        estimated = estimate()
        if scale is not None:
            scale.observe(scale.deviation * estimated.vs[mask])
        return estimated
