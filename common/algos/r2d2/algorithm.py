"""R2D2: Q-learning of a recurrent network from replayed sequences, which begin with the memory that was stored."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zerobeast.common.algos.exploration import best, epsilon_greedy, epsilons
from zerobeast.common.algos.gradient_descent import GradientDescent
from zerobeast.common.algos.protocol import Act, Sampling
from zerobeast.common.algos.q_network import QNetwork
from zerobeast.common.algos.r2d2.config import R2D2Config
from zerobeast.common.algos.r2d2.loss import first_priorities, loss
from zerobeast.common.algos.replay_learning import ReplayLearning, Updated
from zerobeast.common.algos.target import Target
from zerobeast.common.nets.network import StepInput
from zerobeast.common.replay.items import BurnIn
from zerobeast.common.replay.replay import Replay
from zerobeast.common.replay.samples import Sequences
from zerobeast.common.settings.run import Run
from zerobeast.common.wire.layout import Field
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.specs import EnvSpec, PolicySpec

#: what first priorities are made of: the values of the action that was taken and of the best one
EXTRAS = (Field("q", "<f4", ()), Field("q_max", "<f4", ()))


class R2D2:
    """See `zerobeast.common.algos.protocol.Algorithm`.

    Args:
      config: of the run.
      env: what the environment sends and takes.

    Raises:
      ConfigError: the network cannot handle these observations or actions.
    """

    def __init__(self, config: Run, env: EnvSpec) -> None:
        self.env, self.config = env, config
        self.settings: R2D2Config = getattr(config, config.algo)
        self.policy = PolicySpec(EXTRAS, self.network().core_size)

    def network(self) -> QNetwork:
        """A new network on the CPU; its weights depend on the run's seed alone."""
        head = {"dueling": self.settings.dueling, "head_size": self.settings.head_size}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return QNetwork(self.config.net, self.env, **head, clip_reward=False)

    @torch.inference_mode()
    def act(self, net: QNetwork, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """One step of B environments, each of which explores as its slot says."""
        answers, core = net(inputs, core)
        q, legal = answers[0], None if inputs.action_mask is None else inputs.action_mask[0]
        action = greedy = best(q, legal)
        if not sampling.greedy:
            action = epsilon_greedy(q, epsilons(sampling.slots, self.settings.ladder), sampling.generator, legal)
        taken, largest = q.gather(-1, torch.stack([action, greedy], -1)).unbind(-1)
        return Act(action, {"q": taken, "q_max": largest}), core

    def learning(self, net: QNetwork) -> R2D2Learning:
        """Learn from sequences of the run's store."""
        return R2D2Learning(self, net)


class R2D2Learning(ReplayLearning[Sequences]):
    """See `zerobeast.common.algos.protocol.Learning`.

    Args:
      algorithm: whose settings these are.
      net: the policy, which is what is trained.
    """

    def __init__(self, algorithm: R2D2, net: QNetwork) -> None:
        config, settings = algorithm.config, algorithm.settings
        replay = Replay(
            config.store,
            rollout_record(algorithm.env, algorithm.policy, config.learner.unroll_length),
            algorithm.env,
            BurnIn(settings.burn_in, settings.sequence_length),
            settings,
            seed=config.seed,
            device=net.device,
            first_priorities=partial(first_priorities, settings),
        )
        super().__init__(config, settings, replay, per_sample=settings.sequence_length)
        self._config, self._net = settings, net
        self._descent = GradientDescent(config, settings, net.parameters())
        copy = deepcopy(net).requires_grad_(requires_grad=False)
        self._target = Target(source=net, copy=copy, period=settings.target_period)

    def update(self, batch: Sequences, weights: Tensor, agent_steps: int) -> Updated:
        """One step down the gradient."""
        with self._descent.autocast():
            total, priorities, metrics = loss(self._config, self._net, self._target.copy, batch, weights)
        step = self._descent.step(total, agent_steps)
        if step.applied:
            self._target.count()
        return Updated(step, metrics, priorities)

    def state(self) -> dict[str, Any]:
        """What training has to remember."""
        own = {"optimizer": self._descent.state(), "target": self._target.state(other=self._target.copy)}
        return super().state() | own

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().load(state)
        self._descent.load(state["optimizer"])
        self._target.load(state["target"], other=self._target.copy)
