"""Algorithms for continuous actions, random transitions and rollouts for them, and their networks written out."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.build.batches import REACH, generator, values_of
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.replay.items import Transitions
from zerobeast.services.learner.update import Trainer

N, T, B = 7, 5, 4
CPU = torch.device("cpu")


def control_config(folder: Path, name: str, *, net: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    """A small run: an update of N transitions for every N agent steps."""
    small = {"batch_size": N, "samples_per_insert": 1.0, "replay_size": 200, "replay_min_size": 10, "random_steps": 0}
    return RunConfig.model_validate(
        {
            "algo": name,
            "root": str(folder),
            "name": "run",
            "total_steps": 10_000,
            "net": {"hidden_size": 8, **(net or {})},
            "learner": {"unroll_length": T, "batch_size": B, "precision": "float32", "device": "cpu"},
            name: {**small, **settings},
        }
    )


def control(folder: Path, name: str, env: EnvSpec = REACH, **settings: Any) -> Any:
    return make_algorithm(control_config(folder, name, **settings), env)


def transitions(seed: int = 1, env: EnvSpec = REACH, n: int = N) -> Transitions:
    """Random transitions; every third terminated."""
    g = generator(seed)

    def seen() -> StepInput:
        nothing = torch.zeros(1, n)
        return StepInput(values_of(env.obs, 1, n, g=g), values_of(env.action, 1, n, g=g), nothing, nothing.bool())

    action, reward = values_of(env.action, n, g=g), torch.randn(n, generator=g)
    discount = torch.where(torch.arange(n) % 3 == 0, 0.0, 0.9)
    return Transitions(seen(), action, reward, discount, seen(), {}, {})


def trainer_of(config: RunConfig) -> Trainer:
    return Trainer(config, CPU, REACH)


def trained(trainer: Trainer, batches: Iterable[int]) -> Trainer:
    """Add batches of random rollouts of B continuing streams, and take every update that is due."""
    for number in batches:
        trainer.add(rollouts(trainer, number), None, np.array([[9, row, number, 0, 1] for row in range(B)]))
        while trainer.learning.due:
            trainer.step()
    return trainer


def rollouts(trainer: Trainer, number: int) -> NDArray[np.void]:
    """Random rows [B]; some episodes are truncated."""
    random = np.random.default_rng(number)
    rows: NDArray[np.void] = np.zeros(B, trainer.record.dtype)
    for name in ("obs", "reward", "last_action"):
        rows[name] = random.normal(size=rows[name].shape)
    rows["truncated"][:, 1:-1] = random.random((B, T - 1)) < 0.2
    rows["first"][:, 2:] = rows["truncated"][:, 1:-1]
    return rows


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
