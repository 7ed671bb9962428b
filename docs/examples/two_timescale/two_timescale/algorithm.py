"""Two-timescale actor-critic: actor and critic have an optimiser each, and rollouts carry only log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from two_timescale.config import TwoTimescaleConfig
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, Field, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCritic, policy_logits, slice_steps, unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, OneBatch, estimate, summarize_steps
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.losses import baseline_loss, entropy_loss, policy_gradient_loss
from zerobeast.rl.protocol import Act, Learned, Sampling


class TwoTimescale(ActorCritic[TwoTimescaleConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        super().__init__(config, env)
        self.policy = PolicySpec((Field("log_prob", "<f4", ()),), self.policy.core_size)

    def act(self, net: PolicyAndValue, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """One step of B environments."""
        act, after = super().act(net, inputs, core, sampling)
        policy = self.family.of(act.extras["logits"], None if inputs.action_mask is None else inputs.action_mask[0])
        return Act(act.action, {"log_prob": policy.log_prob(act.action)}), after

    @torch.no_grad()
    def divergence(self, net: PolicyAndValue, batch: Batch) -> Tensor:
        """An estimate of KL(mu || pi) from the actions taken, because rollouts have no logits."""
        policy = self.family.of(policy_logits(net, batch), batch.legal)
        log_ratio = policy.log_prob(batch.actions) - batch.extras["log_prob"]
        return log_ratio.expm1() - log_ratio

    def learning(self, net: PolicyAndValue) -> TwoTimescaleLearning:
        """One step of each optimiser per batch."""
        return TwoTimescaleLearning(self, net)


class TwoTimescaleLearning(OneBatch):
    """See `zerobeast.rl.protocol.Learning`."""

    def __init__(self, algorithm: TwoTimescale, net: PolicyAndValue) -> None:
        run, self._settings, self._family, self._net = algorithm.config, algorithm.settings, algorithm.family, net
        critic = [*net.value.parameters(), *net.body.torsos[1:].parameters()]  # its head and, if any, its torso
        actor = [p for p in net.parameters() if all(p is not other for other in critic)]
        fast = self._settings.model_copy(update={"learning_rate": self._settings.critic_learning_rate})
        self._actor, self._critic = GradientDescent(run, self._settings, actor), GradientDescent(run, fast, critic)
        self.parts = {"actor": self._actor, "critic": self._critic}  # what a checkpoint holds besides the policy

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """A V-trace policy gradient, and regression of the values on their V-trace targets."""
        own, mask, choice = self._settings, batch.mask, self._family.select_decisions(batch.mask, batch.legal)
        with self._actor.autocast():
            logits, values = unroll(self._net, batch)
            policy = self._family.of(logits, batch.legal)
            taken = policy.log_prob(batch.actions)
            targets = estimate(own, batch, values.detach(), taken.detach() - batch.extras["log_prob"])
            weighted = targets.weights * targets.advantages
            pg = policy_gradient_loss(log_probs=taken, advantages=weighted, mask=choice, reduction="mean")
            entropy = entropy_loss(entropies=policy.entropy(), mask=choice, reduction="mean")
            regression = baseline_loss(values=values[:-1], targets=targets.vs, mask=mask, reduction="mean")
        self._critic.step(own.baseline_cost * regression, agent_steps, mask)
        step = self._actor.step(pg + own.entropy_cost * entropy, agent_steps, choice)
        self._net.observe(slice_steps(batch.obs, slice(-1)))
        curves = {"pg_loss": pg.detach(), "baseline_loss": regression.detach(), "entropy": -entropy.detach()}
        return summarize_steps([(step, curves)])
