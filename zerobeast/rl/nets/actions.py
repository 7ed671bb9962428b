"""Features of the last action, for the input of a network, and parameters of the next action's distribution
(`zerobeast.rl.ops.distributions`), from its output."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.settings import NetConfig
from zerobeast.common.wire import ArraySpace, CompositeSpace, Space
from zerobeast.rl.ops.gaussian import Box
from zerobeast.rl.ops.tree import leaves

POLICY_GAIN = 0.01  #: the initial policy is almost the same in all states, so that no seed decides what is explored
CLIP = 10.0  #: bound of real actions as features, in units of their box


class OneHots(nn.Module):
    """Choices as one-hots, all components side by side.

    Args:
      sizes: number of choices of each component.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.size = sum(sizes)
        entries = [(component, choice) for component, n in enumerate(sizes) for choice in range(n)]
        owner, choice = torch.tensor(entries).unbind(1)
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("choice", choice, persistent=False)
        self.owner: Tensor  # [size], the component of each entry
        self.choice: Tensor  # [size], the choice of each entry within its component

    def forward(self, choices: Tensor, lead: int = 2) -> Tensor:
        """Integers [*lead, *shape] -> [*lead, size] float32; the first `lead` dimensions are kept."""
        components = choices.flatten(lead) if choices.ndim > lead else choices.unsqueeze(-1)
        if components.shape[-1] > 1:
            components = components[..., self.owner]
        return (components == self.choice).float()


class Reals(nn.Module):
    """Real actions in units of their box, clipped.

    Args:
      action: their space.
    """

    def __init__(self, action: ArraySpace) -> None:
        super().__init__()
        self.size = math.prod(action.shape)
        self._box = Box(action)

    def forward(self, actions: Tensor) -> Tensor:
        """[T, B, *shape] float32 -> [T, B, size]."""
        return self._box.units(actions).clamp(-CLIP, CLIP)


class SideBySide(nn.Module):
    """Features of several arrays, side by side.

    Args:
      arrays: the module that makes the features of each array.
    """

    def __init__(self, arrays: Sequence[OneHots | Reals]) -> None:
        super().__init__()
        self.arrays, self.size = nn.ModuleList(arrays), sum(array.size for array in arrays)

    def forward(self, actions: Any) -> Tensor:
        """A tree of [T, B, *shape] -> [T, B, size] float32."""
        parts = [features(values) for features, values in zip(self.arrays, leaves(actions), strict=True)]
        return torch.cat(parts, -1)


def action_features(action: Space) -> OneHots | Reals | SideBySide:
    """The module that makes features [T, B, size] of actions, a tree of [T, B, *shape]."""
    arrays = [Reals(array) if array.kind == "box" else OneHots(array.choices) for array in action.arrays]
    return arrays[0] if isinstance(action, ArraySpace) else SideBySide(arrays)


class GaussianHead(nn.Module):
    """Means and log standard deviations of real actions. Means begin near 0.

    Args:
      width: of the features.
      n: components of an action.
      config: initial value of the deviations, and whether they are free parameters, the same in every state, or depend
        on the features.
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


class Heads(nn.Module):
    """Several heads on the same features, their outputs side by side."""

    def __init__(self, heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> Tensor:
        """[..., width] -> [..., P]."""
        return torch.cat([part(features) for part in self.heads], -1)


def policy_head(width: int, action: Space, config: NetConfig) -> nn.Module:
    """The layer from features [..., width] to the parameters [..., P] of the family of `action`."""
    if isinstance(action, CompositeSpace):
        return Heads(policy_head(width, array, config) for array in action.arrays)
    if action.kind == "box":
        return GaussianHead(width, math.prod(action.shape), config)
    return head(width, sum(action.choices), POLICY_GAIN)


def head(width: int, n: int, gain: float) -> nn.Linear:
    """A last layer with orthogonal weights of this gain and zero biases."""
    layer = nn.Linear(width, n)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
