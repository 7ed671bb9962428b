"""Checkpoints of a learner that was trained on rollouts of no environment."""

from pathlib import Path
from typing import Any

import torch

from tests.build.learners import B, learn, rollout_rows
from zerobeast.services.learner.checkpoint import Checkpoints, load_checkpoint
from zerobeast.services.learner.update import Trainer

CPU = torch.device("cpu")


def saved(folder: Path, trainer: Trainer, **changes: Any) -> Path:
    checkpoints = Checkpoints(folder)
    checkpoints.save({**trainer.state(), "statistics": {}, "rollouts": {}, **changes})
    return checkpoints.path


def trained(trainer: Trainer, seeds: range) -> Trainer:
    for seed in seeds:
        learn(trainer, rollout_rows(B, seed, policy=trainer.policy))
    return trainer


def state_in(path: Path) -> dict[str, Any]:
    state = load_checkpoint(path)
    assert state is not None
    return state


def same(one: Any, two: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)
