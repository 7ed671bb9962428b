"""The loss of IMPALA and A2C: V-trace policy gradient, value regression, entropy bonus (Espeholt et al. 2018,
section 4.2)."""

from typing import TypeVar

from torch import Tensor

from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCritic, combine_terms, lag_metrics, unroll
from zerobeast.rl.algos.policy_gradient.one_step import OneStep
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, estimate
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.ops.losses import policy_gradient_loss, standardize
from zerobeast.rl.protocol import Learning, Metrics
from zerobeast.rl.settings import VTraceSettings

Settings = TypeVar("Settings", bound=VTraceSettings)


class VTraceActorCritic(ActorCritic[Settings]):
    """An algorithm with this loss."""

    def loss(self, net: PolicyAndValue, batch: Batch) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, and its parts."""
        settings = self.settings.at(net.agent_steps / self.config.total_steps)
        total, _, metrics = loss(settings, self.family, net, batch, entropy_cost=settings.entropy_cost)
        return total, metrics

    def learning(self, net: PolicyAndValue) -> Learning:
        """One step of the optimiser per batch."""
        descent = GradientDescent(self.config, self.settings, net.parameters())
        return OneStep(net, descent, self.loss, self.settings.reduction)


def loss(
    config: VTraceSettings, family: Family, net: PolicyAndValue, batch: Batch, *, entropy_cost: float | Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """The weighted sum of the three terms; value targets [T, B], without gradient; and the parts of the sum.

    With PopArt, value errors and advantages are in units of their task's deviation (Hessel et al. 2018, equations 9 to
    11), whatever the size of its rewards.

    Args:
      config: of the algorithm.
      family: of the policy's distributions.
      net: the policy.
      batch: from any behaviour policy.
      entropy_cost: the weight of the entropy bonus, without gradient: the one in `config`, or a learned one.
    """
    logits, values = unroll(net, batch)
    policy, behaviour = (family.of(each, batch.legal) for each in (logits, batch.extras["logits"]))
    actions, mask, scale = batch.actions, batch.mask, net.value_scale(batch.task)
    choice = family.select_decisions(mask, batch.legal)
    taken = policy.log_prob(actions)
    log_rhos = taken.detach() - behaviour.log_prob(actions)
    targets = estimate(config, batch, values.detach(), log_rhos)
    advantages = targets.advantages / scale
    if config.normalize_advantages:
        advantages = standardize(advantages, choice)
    weighted, how = targets.weights * advantages, config.reduction
    total, metrics = combine_terms(
        config,
        policy,
        pg=policy_gradient_loss(log_probs=taken, advantages=weighted, mask=choice, reduction=how),
        values=values[:-1] / scale,
        targets=targets.vs / scale,
        masks=(mask, choice),
        entropy_cost=entropy_cost,
        reduction=how,
    )
    return total, targets.vs, metrics | lag_metrics(behaviour, policy, log_rhos, choice)
