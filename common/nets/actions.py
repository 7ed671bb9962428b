"""Actions on their way into a network, as features of the last one, and out of it, as parameters of the next one's
distribution (`zerobeast.common.ops.distributions`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zerobeast.common.ops.gaussian import Box
from zerobeast.common.settings.run import NetConfig
from zerobeast.common.wire.specs import ActionSpec

POLICY_GAIN = 0.01  #: the first policy is all but the same everywhere, so that no seed decides what is explored
CLIP = 10.0  #: of real actions as features, in units of their box


class OneHots(nn.Module):
    """Choices as one-hots, those of all components side by side.

    Args:
      sizes: choices of each component.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.size = sum(sizes)
        entries = [(component, choice) for component, n in enumerate(sizes) for choice in range(n)]
        owner, choice = torch.tensor(entries).unbind(1)
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("choice", choice, persistent=False)
        self.owner: Tensor  # [size], which component an entry is of
        self.choice: Tensor  # [size], and which of its choices

    def forward(self, actions: Tensor) -> Tensor:
        """[T, B, *shape] int64 -> [T, B, size] float32."""
        components = actions.flatten(2) if actions.ndim > 2 else actions.unsqueeze(-1)
        if components.shape[-1] > 1:
            components = components[..., self.owner]
        return (components == self.choice).float()


class Reals(nn.Module):
    """Real actions in units of their box, clipped.

    Args:
      action: their space.
    """

    def __init__(self, action: ActionSpec) -> None:
        super().__init__()
        self.size = len(action.low)
        self._box = Box(action)

    def forward(self, actions: Tensor) -> Tensor:
        """[T, B, *shape] float32 -> [T, B, size]."""
        return self._box.units(actions).clamp(-CLIP, CLIP)


def last_action(action: ActionSpec) -> OneHots | Reals:
    """What makes features of the last action."""
    return Reals(action) if action.kind == "box" else OneHots(action.sizes)


class GaussianHead(nn.Module):
    """Means and log standard deviations of real actions. Means begin at 0.

    Args:
      width: of the features.
      n: components of an action.
      config: what the deviations begin with, and whether they are parameters of their own, the same in every state, or
        depend on the features.
    """

    def __init__(self, width: int, n: int, config: NetConfig) -> None:
        super().__init__()
        self.mean = head(width, n, POLICY_GAIN)
        if config.action_std == "state":
            self.log_std: nn.Linear | nn.Parameter = head(width, n, POLICY_GAIN)
            nn.init.constant_(self.log_std.bias, config.action_log_std)
        else:
            self.log_std = nn.Parameter(torch.full((n,), config.action_log_std))

    def forward(self, features: Tensor) -> Tensor:
        """[..., width] -> [..., 2 n], all means first."""
        mean = self.mean(features)
        log_std = self.log_std.expand_as(mean) if isinstance(self.log_std, nn.Parameter) else self.log_std(features)
        return torch.cat([mean, log_std], -1)


def policy_head(width: int, action: ActionSpec, config: NetConfig) -> nn.Module:
    """From features [..., width] to the parameters [..., P] of the family of `action`."""
    if action.kind == "box":
        return GaussianHead(width, len(action.low), config)
    return head(width, sum(action.sizes), POLICY_GAIN)


def head(width: int, n: int, gain: float) -> nn.Linear:
    """A last layer: orthogonal weights of this gain, no bias."""
    layer = nn.Linear(width, n)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
