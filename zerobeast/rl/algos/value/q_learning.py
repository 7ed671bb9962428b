"""Q-learning from a replay: DQN and its descendants (Mnih et al. 2015 and later, as summarised by Hessel et al. 2018).

    target of Z(s, a):  sum of n discounted rewards + gamma^n Z_target(s', argmax_a' E Z(s', a'))

Z is a number or a distribution, see `zerobeast.rl.algos.value.q_values`. Without `double`, the action is the one that
Z_target prefers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, Field, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps
from zerobeast.rl.algos.value.exploration import anneal_epsilon, best_action, epsilon_greedy, epsilons, select_actions
from zerobeast.rl.algos.value.q_network import QNetwork
from zerobeast.rl.algos.value.q_values import Values
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, ReplayLearning, Step, Target, UpdateResult, shape_rewards
from zerobeast.rl.nets import StepInput, seed_weights
from zerobeast.rl.protocol import Act, Learning, Sampling
from zerobeast.rl.replay.items import Items, NStep, Transitions
from zerobeast.rl.replay.spans import S
from zerobeast.rl.replay_settings import QSettings

VALUE_FIELDS = (Field("q", "<f4", ()), Field("q_max", "<f4", ()))  #: values of the action taken, and of the best one
BEST_FIELDS = (Field("best", "<i8", ()),)  #: the best action, for `divergence`

Settings = TypeVar("Settings", bound=QSettings)


class QAlgorithm(ABC, Generic[Settings]):
    """See `zerobeast.rl.protocol.Algorithm`. It takes the best action, or now and then a random one.

    If priorities are TD errors, the values computed when acting are sent along, so that first priorities can be
    computed from them (Horgan et al. 2018). With distributions, priorities are divergences, for which expected returns
    are not enough.

    Args:
      config: of the run; `settings` is its section named by `algo`.
      env: what the environment sends and takes.
    """

    clip_reward: ClassVar[bool] = True  #: whether the network gets the reward clipped

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env = env
        self.config = config
        self.settings = cast("Settings", config.algorithm)
        core_size = self.network().core_size
        by_errors = self.settings.priority_exponent > 0 and self.values.atoms is None
        extras = (*(VALUE_FIELDS if by_errors else ()), *(BEST_FIELDS if config.sync.parsed.measured else ()))
        self.policy = PolicySpec(extras, core_size)

    @property
    @abstractmethod
    def values(self) -> Values:
        """How to interpret the network's answers."""

    def network(self) -> QNetwork:
        """A new network on the CPU; its weights depend on the run's seed alone."""
        with seed_weights(self.config.seed):
            return QNetwork(
                self.config.net,
                self.env,
                dueling=self.settings.dueling,
                atoms=self.values.atoms,
                head_size=self.settings.head_size,
                clip_reward=self.clip_reward,
            )

    @torch.inference_mode()
    def act(self, net: QNetwork, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """One step of B environments."""
        answers, core = net(inputs, core)
        q, legal = self.values.expectation(answers[0]), None if inputs.action_mask is None else inputs.action_mask[0]
        action = greedy = best_action(q, legal)
        if not sampling.greedy:
            action = epsilon_greedy(q, self._epsilon(net, sampling.slots), sampling.generator, legal)
        extras = {"q": select_actions(q, action), "q_max": select_actions(q, greedy), "best": greedy}
        asked = {field.name for field in self.policy.extras}
        return Act(action, {name: values for name, values in extras.items() if name in asked}), core

    def action_values(self, net: QNetwork, inputs: StepInput, core: Tensor) -> Tensor:
        """The value of each action of one step, [B, A], with gradient."""
        return self.values.expectation(net(inputs, core)[0][0])

    def value(self, net: QNetwork, inputs: StepInput, core: Tensor, task: int = 0) -> Tensor:
        """The value of the best action of one step, [B], with gradient; the same network has those of every task."""
        del task
        q, legal = self.action_values(net, inputs, core), inputs.action_mask
        return select_actions(q, best_action(q, None if legal is None else legal[0]))

    @torch.no_grad()
    def divergence(self, net: QNetwork, batch: Batch) -> Tensor:
        """1 where the best action has changed; its mean is the policy churn (Schaul et al. 2022)."""
        answers, _ = net(slice_steps(batch.inputs, slice(-1)), batch.core_state)
        changed = (best_action(self.values.expectation(answers), batch.legal) != batch.extras["best"]).float()
        return changed if batch.legal is None else changed.masked_fill(batch.legal.sum(-1) < 2, torch.nan)

    def learning(self, net: QNetwork) -> Learning:
        """Learn from transitions of the replay."""
        return QLearning(self, net)

    def _epsilon(self, net: QNetwork, slots: Tensor) -> Tensor:
        settings = self.settings
        if settings.exploration == "ladder":
            return epsilons(slots, settings.exploration_places)
        return anneal_epsilon(net.agent_steps, settings.exploration_final, settings.exploration_steps)


class ValueLearning(ReplayLearning[S]):
    """See `zerobeast.rl.protocol.Learning`: a network of values, its optimiser, and the target that follows it.

    Args:
      algorithm: provides the settings and the kind of values.
      net: the policy to train.
      items: the kind of items to draw from the replay.
      first_priorities: of new items, from the values computed when acting.
    """

    def __init__(
        self,
        algorithm: QAlgorithm[Any],
        net: QNetwork,
        items: Items[S],
        first_priorities: Callable[[S], Tensor],
    ) -> None:
        first = first_priorities if VALUE_FIELDS[0] in algorithm.policy.extras else None
        config, settings = algorithm.config, algorithm.settings
        super().__init__(config, algorithm.env, algorithm.policy, items, net.device, first)
        self._net = net
        self._descent = GradientDescent(config, settings, net.parameters())
        copy = deepcopy(net).requires_grad_(requires_grad=False)
        self._target = Target(source=net, copy=copy, period=settings.target_period, tau=settings.target_rate)
        self.parts |= {"optimizer": self._descent, "target": self._target}

    def descend(self, loss: Tensor, obs: Any, agent_steps: int) -> Step:
        """Take an optimiser step, after which the target follows if its period is over.

        Args:
          loss: to minimise.
          obs: [T, B, ...] of the loss, added to their statistics every time they are learned from.
          agent_steps: of the run so far.
        """
        step = self._descent.step(loss, agent_steps)
        if step.applied:
            self._net.observe(obs)
            self._target.count()
        return step


class QLearning(ValueLearning[Transitions]):
    """See `ValueLearning`: from transitions."""

    def __init__(self, algorithm: QAlgorithm[Any], net: QNetwork) -> None:
        settings = algorithm.settings
        shape = partial(shape_rewards, settings=settings)
        items = partial(NStep, n=settings.n_step, discount=settings.discount, shape=shape)
        super().__init__(algorithm, net, items, first_priorities)
        self._values, self._double = algorithm.values, settings.double

    def update(self, batch: Transitions, weights: Tensor, agent_steps: int) -> UpdateResult:
        """Take one optimiser step on the drawn items."""
        with self._descent.autocast():
            chosen = select_actions(compute_answers(self._net, batch.inputs), batch.action)
            bootstrap = self._bootstrap(batch.next_inputs)
        loss, priority = self._values.compare(chosen, bootstrap, batch.reward, batch.discount)
        step = self.descend((weights * loss).mean(), batch.inputs.obs, agent_steps)
        metrics = {"q": self._values.expectation(chosen.detach()).mean(), "error": priority.mean()}
        return UpdateResult(step, metrics, priority, transitions=len(weights))

    @torch.no_grad()
    def _bootstrap(self, inputs: StepInput) -> Tensor:
        """[N] or [N, K]: the target network's answer for the best action."""
        target = compute_answers(self._target.copy, inputs)
        judge = compute_answers(self._net, inputs) if self._double else target
        legal = None if inputs.action_mask is None else inputs.action_mask[0]
        return select_actions(target, best_action(self._values.expectation(judge), legal))


def compute_answers(net: QNetwork, inputs: StepInput) -> Tensor:
    """Answers [N, A] or [N, A, K] to steps [1, N, ...], each step on its own."""
    every, _ = net(inputs, net.initial_state(inputs.first.shape[1]))
    of_step: Tensor = every[0]
    return of_step


def first_priorities(new: Transitions) -> Tensor:
    """[N] |TD errors| of new items, from the values computed when acting (Horgan et al. 2018, algorithm 1)."""
    return (new.reward + new.discount * new.next_extras["q_max"] - new.extras["q"]).abs()
