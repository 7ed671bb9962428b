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


def saved(entries: Sequence[Entry]) -> dict[str, Any]:
    """Entries for a checkpoint: few large tensors, since each tensor of a file takes time."""
    if not entries:
        return {}
    rollouts = [entry.rollout for entry in entries if entry.rollout is not None]
    unknown = torch.full_like(entries[0].step.state[:1], torch.nan)
    return {
        "steps": stacked(entries)._asdict(),
        "losses": torch.stack([unknown[0] if entry.loss is None else entry.loss for entry in entries]),
        "keys": torch.stack([entry.key for entry in entries if entry.key is not None] or [unknown]),
        "with_key": [entry.key is not None for entry in entries],
        "priorities": [entry.priority for entry in entries],
        "rollouts": Batch.joined(rollouts)._asdict() if rollouts else None,
        "with_rollout": [entry.rollout is not None for entry in entries],
    }


def restored(state: dict[str, Any], device: torch.device, steps: int) -> Iterator[Entry]:
    """Entries from a checkpoint, without rollouts of another length than `steps`: they fit no batch any more."""
    if not state:
        return
    own = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, state)
    all_steps, keys = Step(**own["steps"]), iter(own["keys"])
    rollouts = iter(_rows(Batch(**own["rollouts"]))) if own["rollouts"] else iter(())
    for row, loss in enumerate(own["losses"]):
        step: Step = tree_map(lambda values, at=row: values[at].clone(), all_steps)
        rollout = next(rollouts) if own["with_rollout"][row] else None
        yield Entry(
            step,
            rollout if rollout is not None and len(rollout.mask) == steps else None,
            None if loss.isnan() else loss,
            next(keys) if own["with_key"][row] else None,
            own["priorities"][row],
        )


def _rows(batch: Batch) -> Iterator[Batch]:
    """Each rollout of a batch on its own."""
    yield from map(batch.pick, torch.arange(batch.mask.shape[1], device=batch.mask.device).view(-1, 1))
