"""Algorithms for continuous actions, random transitions for them, and their networks written out."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.build.batches import ALGORITHMS, REACH, algorithm_of, generator, values_of
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.replay.items import Transitions
from zerobeast.rl.replay_settings import BoxSettings

CONTROL = [name for name, section in ALGORITHMS.items() if issubclass(section, BoxSettings)]
N = 7
ONES = torch.ones(N)


def control(root: Path, name: str, env: EnvSpec = REACH, *, net: dict[str, Any] | None = None, **settings: Any) -> Any:
    """See `algorithm_of`; layers have 8 units."""
    return algorithm_of(name, env, root=root, net={"hidden_size": 8, **(net or {})}, **settings)


def transitions(seed: int = 1, env: EnvSpec = REACH, n: int = N) -> Transitions:
    """Random transitions; every third terminated."""
    g = generator(seed)

    def seen() -> StepInput:
        nothing = torch.zeros(1, n)
        return StepInput(values_of(env.obs, 1, n, g=g), values_of(env.action, 1, n, g=g), nothing, nothing.bool())

    action, reward = values_of(env.action, n, g=g), torch.randn(n, generator=g)
    discount = torch.where(torch.arange(n) % 3 == 0, 0.0, 0.9)
    return Transitions(seen(), action, reward, discount, seen(), {}, {})


def mlp(x: Tensor, layers: list[Tensor]) -> Tensor:
    """Two ReLU layers and a linear one; `layers` alternates weights [in, out] and biases [out]."""
    one, a, two, b, three, c = layers
    hidden = torch.clamp(torch.clamp(x @ one + a, min=0) @ two + b, min=0)
    return hidden @ three + c


def of_policy(net: Any) -> list[Tensor]:
    """A copy of a policy's layers, for `mlp`."""
    found = [entry.detach().clone() for entry in net.mlp.parameters()]
    return [(entry.T.contiguous() if entry.ndim == 2 else entry).requires_grad_() for entry in found]


def of_critics(critics: Any) -> list[list[Tensor]]:
    """A copy of the layers of each critic."""
    stacks = [
        layer for part in (critics.first, critics.second, critics.out) for layer in (part.weight, part.bias[:, 0])
    ]
    return [[entry[k].detach().clone().requires_grad_() for entry in stacks] for k in range(len(critics.out.weight))]


def assert_same_layers(one: list[Tensor], two: list[Tensor]) -> None:
    """Assert that layers are equal up to float32 rounding."""
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


def follow(target: list[Tensor], source: list[Tensor], tau: float) -> None:
    with torch.no_grad():
        for own, new in zip(target, source, strict=True):
            own.copy_(tau * new + (1 - tau) * own)
