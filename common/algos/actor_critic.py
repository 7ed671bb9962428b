"""What all actor-critic algorithms share: the network, how it acts, and how it sees a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.protocol import Act, Batch
from common.config.tree import RunConfig
from common.nets.agent import AgentNet, StepInput
from common.ops.distributions import family_of
from common.specs import EnvSpec, PolicySpec


class ActorCritic:
    """The acting half of `common.algos.protocol.Algorithm`: draw from the policy, or take its likeliest action.

    Args:
      config: of the run.
      env: what the environment sends and takes.

    Raises:
      ConfigError: the network cannot handle these observations or actions.
    """

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env = env
        self.config = config
        self.family = family_of(env.action, squash=config.net.squash_actions)
        core_size = self.network().core_size  # which also checks that observations and torso fit
        self.policy = PolicySpec(self.family.n_params, core_size)

    def network(self) -> AgentNet:
        """A new network on the CPU; its weights depend on the run's seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return AgentNet(self.config.net, self.env)

    @torch.inference_mode()
    def act(
        self, net: AgentNet, inputs: StepInput, core: Tensor, *, generator: torch.Generator, greedy: bool
    ) -> tuple[Act, Tensor]:
        """One step of B environments."""
        (logits, value), core = net(inputs, core)
        logits, value = logits[0], value[0]
        policy = self.family.of(logits)
        action = policy.mode() if greedy else policy.sample(generator)
        return Act(action, logits, value), core


def unroll(net: AgentNet, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [T, B, A] and values [T + 1, B] of a batch.

    The last step of the unroll is there for its value alone, so the network sees it without gradient.
    """
    steps = StepInput(batch.obs, batch.last_action, batch.reward, batch.first)
    (logits, values), core = net(StepInput(*(entry[:-1] for entry in steps)), batch.core_state)
    with torch.no_grad():
        (_, bootstrap), _ = net(StepInput(*(entry[-1:] for entry in steps)), core)
    return logits, torch.cat([values, bootstrap])
