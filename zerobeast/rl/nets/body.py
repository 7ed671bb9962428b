"""From the inputs of a network to features, before any head: torso, optional last action and reward, optional core.

                                  +--> [episodic memory] --+
obs --> normalisation --> torso --+----------------------> [core] --> features
[last action] --------------------+
[reward] -------------------------+
"""

from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.settings import NetConfig, torso_of
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.nets.actions import action_features
from zerobeast.rl.nets.core import make_core
from zerobeast.rl.nets.episodic import EpisodicMemory
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.normalize import ObsNorm
from zerobeast.rl.nets.torso import Torso, make_torso
from zerobeast.rl.ops.tree import leaves


class Body(nn.Module):
    """Features of one environment's steps.

    With `net.last_action_reward`, the last action and the reward, clipped to [-1, 1] unless that is turned off, are
    appended to the torso's features, as in IMPALA and TorchBeast. Both are 0 in the first step of an episode, and the
    recurrent state is zeroed before it.

    Args:
      config: which torso, how wide, with a core and an episodic memory or without.
      env: its observations and actions.
      heads: number of heads on the features. Each gets a torso of its own if the torso is a small one, not to be
        shared, and there is no core.
      clip_reward: whether the reward is clipped.
      bare: whether the heads have dense layers of their own.
    """

    def __init__(
        self, config: NetConfig, env: EnvSpec, heads: int = 1, *, clip_reward: bool = True, bare: bool = False
    ) -> None:
        super().__init__()
        self._clip_reward = clip_reward
        self.norm = ObsNorm(env.obs, env.frame_stack, config) if config.normalize_obs else None
        torso = make_torso(config, env, bare=bare)
        own = 1 if torso.shared or config.recurrent else heads
        self.torsos = nn.ModuleList([torso, *(make_torso(config, env, bare=bare) for _ in range(own - 1))])
        self.last_action = action_features(env.action) if config.sees_last_step else None
        width = torso.out_size + (self.last_action.size + 1 if self.last_action else 0)
        self.core = make_core(config, width) if config.recurrent else None
        self.core_size = self.core.state_size if self.core else 0
        self.out_size = self.core.out_size if self.core else width
        self.memory = None
        if self.core is not None and config.memory != "none":
            self.memory = EpisodicMemory(config, torso.out_size)

    def forward(self, inputs: StepInput, core: Tensor) -> tuple[list[Tensor], Tensor]:
        """Unroll T steps.

        Args:
          inputs: T steps of B environments.
          core: [B, core_size] the state before step 0.

        Returns:
          a list of features [T, B, out_size] float32, one entry for each head or one for all, so that the first entry
          is the first head's and the last entry the last head's; and the state after the last step, [B, core_size].
        """
        if self.core is not None:
            hidden, core = self.unroll(inputs, core)
            return [hidden], core
        last = self._last_step(inputs)
        return [torch.cat([self._over_time(torso, inputs.obs), *last], dim=-1) for torso in self.torsos], core

    def unroll(self, inputs: StepInput, core: Tensor) -> tuple[Tensor, Tensor]:
        """The features of the core after each step, [T, B, out_size], and its state after the last one."""
        assert self.core is not None, "the settings have one"
        seen = self.embed(inputs.obs)
        reinstated = [self.memory.reinstate(seen)] if self.memory else []
        hidden: Tensor
        hidden, core = self.core(torch.cat([seen, *self._last_step(inputs)], dim=-1), inputs.first, core, *reinstated)
        return hidden, core

    def embed(self, obs: Any) -> Tensor:
        """The features of the torso, [T, B, E] float32, of observations [T, B, (k,) *frame]."""
        return self._over_time(self.torsos[0], obs)

    def lower(self, dtype: torch.dtype) -> None:
        """Compute in `dtype`, for inference."""
        for torso in self.torsos:
            assert isinstance(torso, Torso), "`make_torso` made it"
            torso.lower(dtype)
        if self.core is not None:
            self.core.lower(dtype)

    def _last_step(self, inputs: StepInput) -> list[Tensor]:
        """Features of the last action and the reward, [T, B, F] each, if the network takes them."""
        if self.last_action is None:
            return []
        reward = inputs.reward.clamp(-1.0, 1.0) if self._clip_reward else inputs.reward
        known = (self.last_action(inputs.last_action), reward.unsqueeze(-1))
        return [each.masked_fill(inputs.first.unsqueeze(-1), 0.0) for each in known]

    def _over_time(self, torso: nn.Module, obs: Any) -> Tensor:
        """Features [T, B, F] float32 of [T, B, ...] observations."""
        arrays = leaves(obs)
        norms = self.norm.of_arrays if self.norm else (None,) * len(arrays)
        features: Tensor = torso(*(array.flatten(0, 1) for array in arrays), norms=norms)
        return features.float().view(*arrays[0].shape[:2], -1)


def make_body(config: NetConfig, env: EnvSpec, heads: int = 1, **more: bool) -> Body:
    """The body that `net.torso` names, or else one with the torso that it names; arguments are those of `Body`.

    Raises:
      ConfigError: it cannot be made.
    """
    make = torso_of(config.torso).load(config.torso)
    if not (isinstance(make, type) and issubclass(make, Body)):
        return Body(config, env, heads, **more)
    with raise_as(ConfigError, f"net.torso {config.torso} cannot be made for {env.env_id}"):
        return make(config.model_copy(update={"torso": "auto"}), env, heads, **more)
