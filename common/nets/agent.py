"""The network of an actor-critic: torso, last action and reward, optional memory, policy and value heads.

obs -> torso --+--> [LSTM] --+--> policy
               |             +--> value       conv torsos, and every torso with an LSTM
last action ---+
reward --------+             the MLP has a second torso that feeds the value instead
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zerobeast.common.errors import ConfigError
from zerobeast.common.nets.actions import LastAction, head, policy_head
from zerobeast.common.nets.lstm import LSTM
from zerobeast.common.nets.normalize import ObsNorm
from zerobeast.common.nets.popart import PopArt
from zerobeast.common.nets.torsos import make_torso
from zerobeast.common.ops.tree import leaves
from zerobeast.common.settings.run import NetConfig
from zerobeast.common.wire.specs import EnvSpec

VALUE_GAIN = 1.0
MAX_BYTES = (
    1 << 30
)  #: of weights: the description of the environment, which a peer sends, decides how large the first layer is


class StepInput(NamedTuple):
    """What the network sees at each step; see `zerobeast.common.wire.records` for the time index."""

    obs: Any  #: [T, B, *frame], or [T, B, k, *frame] with a frame stack of k > 1; a tree if it has several arrays
    last_action: Any  #: [T, B, *action shape], or a tree of such, ignored where first
    reward: Tensor  #: [T, B] float32, unclipped, ignored where first
    first: Tensor  #: [T, B] bool, True where obs opens an episode
    action_mask: Tensor | None = None  #: [T, B, choices of all components] bool, True where legal; None: all are


class AgentOutput(NamedTuple):
    """What it answers, float32 whatever it computed in."""

    logits: Tensor  #: [T, B, A], parameters of the distribution of actions: `zerobeast.common.ops.distributions`
    value: Tensor  #: [T, B]


class AgentNet(nn.Module):
    """Policy and value of one environment's observations, for actions of any kind.

    As in IMPALA and TorchBeast the reward, clipped to [-1, 1], and the last action join the torso's features; both are
    0 in the first step of an episode, and the recurrent state is zeroed before it.

    Args:
      config: which torso, how wide, with memory or without.
      env: its observations and actions.

    Raises:
      ConfigError: the named torso cannot take what the environment sends, or there would be too many weights.
    """

    agent_steps: Tensor  #: [] int64, of the run when this version was published: what schedules of acting follow

    def __init__(self, config: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.register_buffer("agent_steps", torch.zeros((), dtype=torch.int64))
        self.norm = ObsNorm(env.obs, env.frame_stack) if config.normalize_obs else None
        self.torso = make_torso(config, env)
        self.last_action = LastAction(env.action)
        width = self.torso.out_size + self.last_action.size + 1
        self.core = LSTM(width, config.lstm_size) if config.use_lstm else None
        self.core_size = self.core.state_size if self.core else 0
        self.value_torso = None if self.torso.shared or self.core else make_torso(config, env)
        width = self.core.hidden_size if self.core else width
        self.policy = policy_head(width, env.action, config)
        self.value: nn.Linear | PopArt = head(width, 1, VALUE_GAIN)  #: one output, or with PopArt one per task
        if (size := sum(weights.nbytes for weights in self.parameters())) > MAX_BYTES:
            raise ConfigError(f"{env.env_id}: a network with {size} bytes of weights, expected at most {MAX_BYTES}")

    def initial_state(self, batch: int) -> Tensor:
        """The state before an episode: zeros [batch, core_size] float32."""
        return torch.zeros(batch, self.core_size, device=self.value.weight.device)

    def forward(self, inputs: StepInput, core: Tensor, task: Tensor | None = None) -> tuple[AgentOutput, Tensor]:
        """Unroll T steps.

        Args:
          inputs: T steps of B environments.
          core: [B, core_size] the state before step 0.
          task: [B] int64, whose value is asked for where there is one per task; None: that of the first. The policy
            is not told.

        Returns:
          the answers to all steps, and the state after the last one, [B, core_size].
        """
        unknown = inputs.first.unsqueeze(-1)
        reward = inputs.reward.clamp(-1.0, 1.0).unsqueeze(-1)
        extras = [extra.masked_fill(unknown, 0.0) for extra in (self.last_action(inputs.last_action), reward)]
        x = torch.cat([_over_time(self.torso, inputs.obs, self.norm), *extras], dim=-1)
        if self.core is not None:
            x, core = self.core(x, inputs.first, core)
        value_x = x
        if self.value_torso is not None:
            value_x = torch.cat([_over_time(self.value_torso, inputs.obs, self.norm), *extras], dim=-1)
        with torch.autocast(x.device.type, enabled=False):  # heads are small, and their rounding is the policy's
            return AgentOutput(self.policy(x), _own(self.value(value_x), task)), core

    def observe(self, obs: Any) -> None:
        """Add observations [T, B, (k,) *frame] to the statistics that normalise them, if any do."""
        if self.norm is not None:
            self.norm.observe(obs)

    def value_scale(self, task: Tensor) -> Tensor:
        """[B] of `task` [B]: the unit that a row's values are learned in, 1 without PopArt."""
        return self.value.scale[task] if isinstance(self.value, PopArt) else torch.ones(len(task), device=task.device)

    def observe_targets(self, targets: Tensor, mask: Tensor, task: Tensor) -> None:
        """Add targets of values [T, B] where `mask` [T, B], of tasks [B], to the statistics of their unit, if any."""
        if isinstance(self.value, PopArt):
            self.value.observe(targets[mask], task.expand_as(mask)[mask])

    def lower(self, dtype: torch.dtype) -> None:
        """Keep the weights of torso and core in `dtype`, for inference: autocast would convert them at every call."""
        for part in (self.torso, self.value_torso, self.core):
            if part is not None:
                part.to(dtype)


def _own(values: Tensor, task: Tensor | None) -> Tensor:
    """[T, B] of values [T, B, K]: those of each row's own task."""
    if task is None or values.shape[-1] == 1:
        return values[..., 0]
    return values.gather(-1, task.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _over_time(torso: nn.Module, obs: Any, norm: ObsNorm | None) -> Tensor:
    """Features [T, B, F] float32 of [T, B, ...] observations."""
    arrays = leaves(obs)
    norms = norm.of_arrays if norm else (None,) * len(arrays)
    features: Tensor = torso(*(array.flatten(0, 1) for array in arrays), norms=norms)
    return features.float().view(*arrays[0].shape[:2], -1)
