"""What is remembered of single steps, with the rollouts that they are from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.data import Batch
from zerobeast.rl.ops.tree import tree_map


class Step(NamedTuple):
    """One step, or n of them with a leading dimension."""

    obs: Any  #: [(k,) *frame], or a tree of such
    state: Tensor  #: [H], the core's hidden state after it
    td_error: Tensor  #: [] >= 0
    return_to_go: Tensor  #: []
    version: Tensor  #: [] int64, the policy_version that acted


@dataclass
class Entry:
    """One step, and how rare it is."""

    step: Step
    rollout: Batch | None  #: packed, one row; None if rollouts are not replayed
    loss: Tensor | None = None  #: [], the moving average of its contrastive losses; None before the first
    key: Tensor | None = None  #: [K]; None before its rarity was measured
    priority: float = 0.5  #: in [0, 1]


def stacked(entries: Iterable[Entry]) -> Step:
    """The steps, side by side."""
    steps: Step = tree_map(lambda *each: torch.stack(each), *(entry.step for entry in entries))
    return steps


def saved(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries for a checkpoint."""
    return [
        {**vars(entry), "step": entry.step._asdict(), "rollout": entry.rollout and entry.rollout._asdict()}
        for entry in entries
    ]


def restored(state: Iterable[dict[str, Any]], device: torch.device, steps: int) -> Iterator[Entry]:
    """Entries from a checkpoint, without rollouts of another length than `steps`: they fit no batch any more."""
    for values in state:
        own = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, values)
        rollout = Batch(**own["rollout"]) if own["rollout"] else None
        rollout = rollout if rollout and len(rollout.mask) == steps else None
        yield Entry(**{**own, "step": Step(**own["step"]), "rollout": rollout})
