"""What all actor-critic algorithms share: the network, acting, the outputs for a batch, and a loss of three terms."""

from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, Field, PolicySpec
from zerobeast.rl.algos.policy_gradient.policy_and_value import Answer, PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, OneBatch, explained_variance
from zerobeast.rl.nets import PopArt, StepInput, seed_weights
from zerobeast.rl.ops import losses
from zerobeast.rl.ops.distributions import Distribution, family_of
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.protocol import Act, Metrics, Sampling
from zerobeast.rl.settings import ActorCriticSettings

PART_BYTES = 1 << 28  #: of float32 observations that a network sees at a time without gradient

Settings = TypeVar("Settings", bound=ActorCriticSettings)


class ActorCritic(Generic[Settings]):
    """The acting half of `rl.protocol.Algorithm`: draw from the policy, or take its likeliest action.

    Args:
      config: of the run; `settings` is its section named by `algo`.
      env: what the environment sends and takes.
    """

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env = env
        self.config = config
        self.settings = cast("Settings", config.algorithm)
        self.family = family_of(env.action, squash=config.net.squash_actions)
        core_size = self.network().core_size  # also checks that observations and torso fit
        self.policy = PolicySpec(logits_and_value(self.family.n_params), core_size)

    def network(self) -> PolicyAndValue:
        """A new network on the CPU; its weights depend on the run's seed alone."""
        with seed_weights(self.config.seed):
            net = PolicyAndValue(self.config.net, self.env)
        if self.settings.normalized_by:
            net.value = PopArt(net.value, len(self.config.env.tasks))
        return net

    @torch.inference_mode()
    def act(self, net: PolicyAndValue, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """One step of B environments, whatever their slots."""
        (logits, value), core = net(inputs, core)
        logits, value = logits[0], value[0]
        policy = self.family.of(logits, None if inputs.action_mask is None else inputs.action_mask[0])
        action = policy.mode() if sampling.greedy else policy.sample(sampling.generator)
        return Act(action, {"logits": logits, "value": value}), core

    def distribution(self, net: PolicyAndValue, inputs: StepInput, core: Tensor) -> Distribution:
        """What actions of one step are drawn from, [B], with gradient."""
        mask = None if inputs.action_mask is None else inputs.action_mask[0]
        return self.family.of(net(inputs, core)[0].logits[0], mask)

    def value(self, net: PolicyAndValue, inputs: StepInput, core: Tensor, task: int = 0) -> Tensor:
        """The values of one step in one of the run's environments, [B], with gradient."""
        answer: Answer = net(inputs, core, torch.full((len(core),), task, device=core.device))[0]
        return answer.value[0]

    @torch.no_grad()
    def divergence(self, net: PolicyAndValue, batch: Batch) -> Tensor:
        """KL(mu || pi), exact."""
        both = (batch.extras["logits"], policy_logits(net, batch))
        behaviour, policy = (self.family.of(logits, batch.legal) for logits in both)
        choice = self.family.select_decisions(torch.ones_like(batch.mask), batch.legal)
        return behaviour.kl(policy).masked_fill(~choice, torch.nan)


class ActorCriticLearning(OneBatch, Generic[Settings]):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings and the distributions.
      net: the network to train.
    """

    def __init__(self, algorithm: ActorCritic[Settings], net: PolicyAndValue) -> None:
        self.settings, self.family, self.net = algorithm.settings, algorithm.family, net
        self._given, self._total_steps = algorithm.settings, algorithm.config.total_steps
        self.descent = GradientDescent(algorithm.config, algorithm.settings, net.parameters())
        self.parts = {"optimizer": self.descent}

    def begin(self, agent_steps: int) -> None:
        """Learn with the coefficients that are due after so many agent steps."""
        self.settings = self._given.at(agent_steps / self._total_steps)

    def observe(self, batch: Batch) -> None:
        """Add a batch to the statistics that normalise observations, once it was learned from.

        Not earlier: the loss compares with the policy that acted. The last step is the first of the next rollout.
        """
        self.net.observe(slice_steps(batch.obs, slice(-1)), batch.away)


def logits_and_value(n_logits: int) -> tuple[Field, ...]:
    """The extras of an actor-critic: the logits of its action distribution, and its value (of the first task)."""
    return (Field("logits", "<f4", (n_logits,)), Field("value", "<f4", ()))


def unroll(net: PolicyAndValue, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [T, B, A] and values [T + 1, B] of a batch, each row's values being those of its own task.

    The last step of the unroll is needed only for its value, which is computed without gradient.
    """
    (logits, values), core = net(slice_steps(batch.inputs, slice(-1)), batch.core_state, batch.task)
    with torch.no_grad():
        (_, bootstrap), _ = net(slice_steps(batch.inputs, slice(-1, None)), core, batch.task)
    return logits, torch.cat([values, bootstrap])


def slice_steps(inputs: Any, which: slice) -> Any:
    """A slice of the time dimension of a tree of [T, ...]."""
    return tree_map(lambda entry: entry[which], inputs)


@torch.no_grad()
def policy_logits(net: PolicyAndValue, batch: Batch) -> Tensor:
    """Logits [T, B, A] of a policy, without gradient, from the states that the rollouts began with."""
    return compute_answers(net, slice_steps(batch.inputs, slice(-1)), batch.core_state).logits


@torch.no_grad()
def compute_answers(net: PolicyAndValue, inputs: StepInput, core: Tensor) -> Answer:
    """Answers to all steps, [T, B], without gradient, from the states that the rollouts began with.

    A batch of images is answered in parts of time, since the activations of a deep network take many times its memory.
    """
    length = max(1, PART_BYTES // (4 * sum(entry[0].numel() for entry in leaves(inputs.obs))))
    parts: list[Answer] = []
    for start in range(0, len(inputs.first), length):
        answer, core = net(slice_steps(inputs, slice(start, start + length)), core)
        parts.append(answer)
    return parts[0] if len(parts) == 1 else Answer(*map(torch.cat, zip(*parts, strict=True)))


def lag_metrics(behaviour: Distribution, policy: Distribution, log_rhos: Tensor, mask: Tensor) -> Metrics:
    """How far the learning policy is from the behaviour policy: the metrics are 0 and 1 if the two are the same.

    The mean ratio could not show this, since E_mu[pi / mu] = 1 however far the two are apart.

    Args:
      behaviour: mu, the policy that acted.
      policy: pi, the policy that learns.
      log_rhos: [T, B] log pi - log mu of the actions taken.
      mask: [T, B] bool, True where transition t is valid and had a choice.

    Returns:
      behaviour_kl: the mean of KL(mu || pi), exact.
      rho_clipped_mean: the mean of min(1, pi / mu), which estimates 1 - TV(mu, pi), TV being the total variation.
    """
    with torch.no_grad():
        return {
            "behaviour_kl": losses.masked_reduce(behaviour.kl(policy), mask, "mean"),
            "rho_clipped_mean": losses.masked_reduce(log_rhos.clamp(max=0.0).exp(), mask, "mean"),
        }


def combine_terms(
    settings: ActorCriticSettings,
    policy: Distribution,
    *,
    pg: Tensor,
    values: Tensor,
    targets: Tensor,
    masks: tuple[Tensor, Tensor],
    entropy_cost: float | Tensor,
    reduction: losses.Reduction = "mean",
) -> tuple[Tensor, Metrics]:
    """The weighted sum of policy gradient, value loss and entropy bonus, and its parts.

    Args:
      settings: hold the weight of the value loss.
      policy: distributions at the steps, [T, B].
      pg: [], the policy loss.
      values: [T, B], with gradient.
      targets: [T, B] value targets, used as constants.
      masks: [T, B] bool each, True where transition t is valid, and where it also had a choice
        (`Family.select_decisions`), which `pg` and the entropy are over.
      entropy_cost: the weight of the entropy bonus, without gradient.
      reduction: of value loss and entropy bonus, the same as that of `pg`.
    """
    entropies, (mask, choice) = policy.entropy(), masks
    baseline = losses.baseline_loss(values=values, targets=targets, mask=mask, reduction=reduction)
    entropy = losses.entropy_loss(entropies=entropies, mask=choice, reduction=reduction)
    part = losses.valid_share(choice, mask, reduction)
    total = part * pg + settings.baseline_cost * baseline + part * entropy_cost * entropy
    return total, {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "baseline_loss": baseline.detach(),
        "entropy": losses.masked_reduce(entropies.detach(), choice, "mean"),
        "explained_variance": explained_variance(targets, values.detach(), mask),
        "valid_fraction": mask.float().mean(),
    }
