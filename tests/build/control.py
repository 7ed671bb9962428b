"""Algorithms for continuous actions, and their networks written out."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.build.batches import ALGORITHMS, REACH, algorithm_of
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.sac.algorithm import SAC
from zerobeast.rl.replay_settings import BoxSettings

CONTROL = [name for name, section in ALGORITHMS.items() if issubclass(section, BoxSettings)]


class NormedSAC(SAC):
    """SAC with batch norms, whatever `net.norm` is."""

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        net = config.net.model_copy(update={"norm": "batch"})
        super().__init__(config.model_copy(update={"net": net}), env)


def control(root: Path, name: str, env: EnvSpec = REACH, *, net: dict[str, Any] | None = None, **settings: Any) -> Any:
    """See `algorithm_of`; layers have 8 units."""
    return algorithm_of(name, env, root=root, net={"hidden_size": 8, **(net or {})}, **settings)


def mlp(x: Tensor, layers: list[Tensor]) -> Tensor:
    """Two ReLU layers and a linear one; `layers` alternates weights [in, out] and biases [out]."""
    one, a, two, b, three, c = layers
    hidden = torch.clamp(torch.clamp(x @ one + a, min=0) @ two + b, min=0)
    return hidden @ three + c


def q_of(critic: list[Tensor], seen: Tensor, units: Tensor) -> Tensor:
    """Values [N] of observations and of actions in units of their box, by a critic's layers."""
    return mlp(torch.cat([seen, units], -1), critic)[:, 0]


def units_of(actions: Tensor) -> Tensor:
    """Actions of REACH in units of their box."""
    return (actions - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0])


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def of_policy(layers: Any) -> list[Tensor]:
    """A copy of a policy's layers, for `mlp`."""
    found = [entry.detach().clone() for entry in layers.parameters()]
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
