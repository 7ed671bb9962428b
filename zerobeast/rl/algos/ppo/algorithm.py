"""PPO: several epochs of minibatches on every batch (Schulman et al. 2017, equations 7 and 9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zerobeast.common.errors import ConfigError
from zerobeast.rl.algos.policy_gradient.actor_critic import (
    ActorCritic,
    ActorCriticLearning,
    compute_answers,
    lag_metrics,
    slice_steps,
)
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.config import PPOConfig
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import Step, estimate, explained_variance, summarize_steps
from zerobeast.rl.learning.returns import ReturnScale
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops import losses, ranks
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.ops.vtrace import VTrace
from zerobeast.rl.protocol import Learned, Metrics


class PPO(ActorCritic[PPOConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> PPOLearning:
        """Several epochs of minibatches on every batch."""
        return PPOLearning(self, net)

    def unit(self, learning: dict[str, Any]) -> float:
        """The deviation of returns that values are learned in units of, from the training state of a checkpoint."""
        scale = ReturnScale()
        if state := learning.get("return_scale"):
            scale.load_state_dict(state)
        return float(scale.deviation)


class PPOLearning(ActorCriticLearning[PPOConfig]):
    """See `ActorCriticLearning`.

    `minibatches` refers to a full batch of `learner.batch_size` rollouts; a smaller batch makes fewer of the same size.
    Every batch is learned from with `settings`, in which schedules have their values after the agent steps before it.
    With several ranks, a minibatch is a part of each one's rows.

    Raises:
      ConfigError: a rank has too few rows.
    """

    optional = ("return_scale",)

    def __init__(self, algorithm: PPO, net: PolicyAndValue) -> None:
        super().__init__(algorithm, net)
        settings, learner = algorithm.settings, algorithm.config.learner
        self._minibatches_per_rollout = settings.minibatches / learner.batch_size
        own = learner.batch_size // ranks.size() * (1 if net.core_size else learner.unroll_length)
        if ranks.size() > 1 and settings.minibatches > own:
            name, parts = f"{algorithm.config.section}.minibatches", "rollouts" if net.core_size else "steps"
            of = f"the {parts} of learner.batch_size {learner.batch_size} that each of {ranks.size()} ranks has"
            raise ConfigError(path=name, value=settings.minibatches, expected=f"at most {own}, {of}")
        self._scale = ReturnScale().to(net.device) if settings.normalize_returns else None
        self.parts["return_scale"] = self._scale

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and stop early if the divergence exceeds `target_kl`."""
        samples, metrics = self._prepare(batch)
        learned = summarize_steps(list(self._steps(samples, batch.mask.shape[1], agent_steps)))
        self.observe(batch)
        return learned._replace(metrics={**learned.metrics, **metrics})

    def _steps(self, samples: Samples, rollouts: int, agent_steps: int) -> Iterator[tuple[Step, Metrics]]:
        sizes = ranks.gather(torch.tensor([rollouts, int(samples.mask.any(0).sum())]), "minibatches")
        minibatches = max(1, round(int(sizes[:, 0].sum()) * self._minibatches_per_rollout))
        filled = min(minibatches, int(sizes[:, 1].max()))
        for _ in range(self.settings.epochs):
            for minibatch in samples.minibatches(minibatches, filled):
                with self.descent.autocast():
                    total, terms = self.loss(minibatch)
                if self.settings.target_kl:
                    choice = self.family.select_decisions(minibatch.mask, minibatch.inputs.action_mask)
                    divergence = ranks.mean_over_ranks(terms["kl"], choice, "divergence")
                    if divergence > self.settings.target_kl:
                        return
                yield self.descent.step(total, agent_steps, minibatch.mask), terms

    @torch.no_grad()
    def _prepare(self, batch: Batch) -> tuple[Samples, Metrics]:
        """The samples for the epochs, and metrics of the batch as a whole."""
        with self.descent.autocast():
            logits, values = compute_answers(self.net, batch.inputs, batch.core_state)
        actions, mask, choice = batch.actions, batch.mask, self.family.select_decisions(batch.mask, batch.legal)
        behaviour, policy = (self.family.of(each, batch.legal) for each in (batch.extras["logits"], logits[:-1]))
        taken = behaviour.log_prob(actions)
        log_rhos = policy.log_prob(actions) - taken
        targets, advantages, _ = self.targets(batch, values, log_rhos)
        samples = Samples(
            inputs=slice_steps(batch.inputs, slice(-1)),
            actions=actions,
            behaviour=taken,
            logits=logits[:-1],
            values=values[:-1],
            targets=targets,
            advantages=losses.standardize(advantages, choice) if self.settings.normalize_advantages else advantages,
            mask=mask,
            core_state=batch.core_state,
        )
        metrics = {
            **lag_metrics(behaviour, policy, log_rhos, choice),
            "explained_variance": explained_variance(targets, values[:-1], mask),
            "valid_fraction": mask.float().mean(),
        }
        return samples if self.net.core_size else samples.single_steps(), metrics

    def loss(self, samples: Samples) -> tuple[Tensor, Metrics]:
        """The scalar to minimise of a minibatch, and its parts, detached; `kl` is one of them."""
        return loss(self.settings, self.family, self.net, samples)

    def targets(self, batch: Batch, values: Tensor, log_rhos: Tensor) -> VTrace:
        """Value targets and advantages, [T, B] each, without gradient: GAE(lambda) if `vtrace` is off.

        Args:
          batch: once, before its epochs.
          values: [T + 1, B] of the policy before them; with `normalize_returns` in units of the deviation of returns.
          log_rhos: [T, B] log-ratios of that policy to the one that acted.
        """
        log_rhos = log_rhos if self.settings.vtrace else torch.zeros_like(log_rhos)
        if (scale := self._scale) is not None:
            # of rewards that are not clipped yet: a scale of clipped ones would shrink until it clips all of them
            returns = estimate(self.settings, batch, values * scale.deviation, log_rhos).vs
            scale.add(returns[batch.mask])
        return estimate(self.settings, batch, values, log_rhos, scale)


def loss(config: PPOConfig, family: Family, net: PolicyAndValue, samples: Samples) -> tuple[Tensor, Metrics]:
    """The weighted sum of the three terms of a minibatch, and its parts, all means over valid steps.

    Those of the policy are over the steps that had a choice. The part `kl` is the exact divergence of the policy from
    the one before the batch.
    """
    (logits, values), _ = net(samples.inputs, samples.core_state)
    policy, before = (family.of(each, samples.inputs.action_mask) for each in (logits, samples.logits))
    mask, choice = samples.mask, family.select_decisions(samples.mask, samples.inputs.action_mask)
    log_ratios = policy.log_prob(samples.actions) - samples.behaviour
    pg = losses.clipped_surrogate_loss(
        log_ratios=log_ratios, advantages=samples.advantages, clip=config.clip, mask=choice, reduction="mean"
    )
    if config.value_clip:
        baseline = losses.clipped_baseline_loss(
            values=values,
            before=samples.values,
            targets=samples.targets,
            clip=config.value_clip,
            mask=mask,
            reduction="mean",
        )
    else:
        baseline = losses.baseline_loss(values=values, targets=samples.targets, mask=mask, reduction="mean")
    entropy = losses.entropy_loss(entropies=policy.entropy(), mask=choice, reduction="mean")
    part = losses.valid_share(choice, mask, "mean")
    total = part * pg + config.baseline_cost * baseline + part * config.entropy_cost * entropy
    clipped = ((log_ratios.detach().exp() - 1).abs() > config.clip).float()
    return total, {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "baseline_loss": baseline.detach(),
        "entropy": -entropy.detach(),
        "kl": losses.masked_reduce(before.kl(policy).detach(), choice, "mean"),
        "clipped": losses.masked_reduce(clipped, choice, "mean"),
    }


class Samples(NamedTuple):
    """S sequences of T steps, computed once per batch, without gradient."""

    inputs: StepInput  #: [T, S, ...] each, of the network
    actions: Any  #: [T, S, *action shape] that were taken, or a tree of such
    behaviour: Tensor  #: [T, S] their log-probabilities under the policy that acted
    logits: Tensor  #: [T, S, A] of the policy before the batch
    values: Tensor  #: [T, S] of the same policy
    targets: Tensor  #: [T, S] for the values
    advantages: Tensor  #: [T, S] of the actions, normalised over the batch if configured
    mask: Tensor  #: [T, S] bool, True where a step is valid
    core_state: Tensor  #: [S, core_size] before step 0

    def single_steps(self) -> Samples:
        """Every step as a sequence of its own, which makes no difference to a network without memory."""
        entries: Samples = tree_map(lambda entry: entry.flatten(0, 1).unsqueeze(0), self._replace(core_state=self.mask))
        return entries._replace(core_state=self.core_state.new_zeros(self.mask.numel(), 0))

    def pick(self, index: Tensor) -> Samples:
        """The sequences at these indices [n]."""
        picked: Samples = tree_map(lambda entry: entry[:, index], self._replace(core_state=self.mask))
        return picked._replace(core_state=self.core_state[index])

    def minibatches(self, n: int, filled: int) -> Iterator[Samples]:
        """The first `filled` of n random parts as equal in size as possible.

        Every sequence with a valid step is in one of the n. A part without any, which is filled only on another rank,
        is one sequence without valid steps.
        """
        some = self.mask.any(0)
        valid = some.nonzero().squeeze(-1)
        order = torch.randperm(len(valid)).to(valid.device)
        for index in valid[order].tensor_split(n)[:filled]:
            yield self.pick(index if len(index) else some.logical_not().nonzero()[0])
