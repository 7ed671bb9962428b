"""IMPALA's network: the actor-critic that every environment with discrete actions gets."""

from __future__ import annotations

import torch

from common.config.tree import RunConfig
from common.errors import ConfigError
from common.nets.agent import AgentNet
from common.specs import EnvSpec


def build(config: RunConfig, env: EnvSpec) -> AgentNet:
    """A network whose weights depend on `config.seed` alone, on the CPU.

    Raises:
      ConfigError: the actions are not discrete, or the torso does not fit the observations.
    """
    if env.action.kind != "discrete":
        raise ConfigError(f"algo impala needs discrete actions, but {env.env_id} has {env.action.kind} ones")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return AgentNet(config.net, env)
