"""What all algorithms that learn action values share: the network, and how it acts."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, Field, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import steps
from zerobeast.rl.algos.value.exploration import annealed, best, epsilon_greedy, epsilons, of_actions
from zerobeast.rl.algos.value.q_network import QNetwork
from zerobeast.rl.algos.value.q_values import Values
from zerobeast.rl.data import Batch
from zerobeast.rl.nets import StepInput
from zerobeast.rl.protocol import Act, Sampling
from zerobeast.rl.replay_settings import QSettings

Settings = TypeVar("Settings", bound=QSettings)


class QActing(ABC, Generic[Settings]):
    """The acting half of `rl.protocol.Algorithm`: take the best action, or now and then a random one.

    If priorities are TD errors, the values computed when acting are sent along, so that first priorities can be
    computed from them (Horgan et al. 2018). With distributions, priorities are divergences, for which expected returns
    are not enough.

    Args:
      config: of the run; `settings` is its section named by `algo`.
      env: what the environment sends and takes.
    """

    clip_reward: ClassVar[bool] = True  #: whether the network sees the reward clipped

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env = env
        self.config = config
        self.settings = cast("Settings", config.algorithm)
        core_size = self.network().core_size
        by_errors = self.settings.priority_exponent > 0 and self.values.atoms is None
        extras = (*(ACTED_BY if by_errors else ()), *(BEST if config.sync.parsed.measured else ()))
        self.policy = PolicySpec(extras, core_size)

    @property
    @abstractmethod
    def values(self) -> Values:
        """How to interpret the network's answers."""

    def network(self) -> QNetwork:
        """A new network on the CPU; its weights depend on the run's seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
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
        q, legal = self.values.expected(answers[0]), None if inputs.action_mask is None else inputs.action_mask[0]
        if sampling.greedy:
            action = best(q, legal)
        else:
            action = epsilon_greedy(q, self._epsilon(net, sampling.slots), sampling.generator, legal)
        asked = {field.name for field in self.policy.extras}
        extras = {name: values for name, values in acted_by(q, action, legal).items() if name in asked}
        return Act(action, extras), core

    def value(self, net: QNetwork, inputs: StepInput, core: Tensor) -> Tensor:
        """The value of the best action of one step, [B], with gradient."""
        q, legal = self.values.expected(net(inputs, core)[0][0]), inputs.action_mask
        return q.gather(-1, best(q, None if legal is None else legal[0]).unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def divergence(self, net: QNetwork, batch: Batch) -> Tensor:
        """1 where the best action has changed; its mean is the policy churn (Schaul et al. 2022)."""
        answers, _ = net(steps(batch.inputs, slice(-1)), batch.core_state)
        return best(self.values.expected(answers), batch.legal) != batch.extras["best"]

    def _epsilon(self, net: QNetwork, slots: Tensor) -> Tensor:
        settings = self.settings
        if settings.exploration == "ladder":
            return epsilons(slots, settings.exploration_places)
        return annealed(net.agent_steps, settings.exploration_final, settings.exploration_steps)


ACTED_BY = (Field("q", "<f4", ()), Field("q_max", "<f4", ()))  #: values of the action taken, and of the best one
BEST = (Field("best", "<i8", ()),)  #: the best action, for `divergence`


def acted_by(q: Tensor, action: Tensor, legal: Tensor | None) -> dict[str, Tensor]:
    """The extras named above, [B] each, from values [B, A] and actions [B]."""
    greedy = best(q, legal)
    return {"q": of_actions(q, action), "q_max": of_actions(q, greedy), "best": greedy}
