"""The episodic memory on the side of the learner: entries, what to keep, what to evict, and what to replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.data import Batch
from zerobeast.rl.nets.episodic import Contents
from zerobeast.rl.ops.tree import tree_map


class Step(NamedTuple):
    """What is remembered of one step, or of n of them with a leading dimension."""

    obs: Any  #: [(k,) *frame], or a tree of such
    state: Tensor  #: [H], the core's hidden state after it
    td_error: Tensor  #: [] >= 0
    return_to_go: Tensor  #: []
    version: Tensor  #: [] int64, the policy_version that acted


@dataclass
class Entry:
    """One step with the rollout that it is from, and how rare it is."""

    step: Step
    rollout: Batch | None  #: packed, one row; None if rollouts are not replayed
    loss: Tensor | None = None  #: [], the moving average of its contrastive losses; None before the first
    key: Tensor | None = None  #: [K]; None before its rarity was measured
    priority: float = 0.5  #: in [0, 1]


class Memory:
    """Keeps the entries of highest priority, whose images and rollouts stay here; the rest is in `contents`.

    Args:
      contents: of the network, without entries.
      decay: factor on all priorities whenever an entry is offered, so that what is new has a chance.
    """

    def __init__(self, contents: Contents, decay: float) -> None:
        self.entries: list[Entry] = []  #: by place
        self.contents, self._decay = contents, decay

    def write(self, entry: Entry) -> int | None:
        """Keep an entry, in place of the most familiar one if there is no room; returns its place.

        Returns None if it is itself the most familiar one.
        """
        contents, place = self.contents, len(self.entries)
        contents.priorities.mul_(self._decay)
        if place == len(contents.keys):
            place = int(contents.priorities.argmin())
            if contents.priorities[place] >= entry.priority:
                return None
            self.entries[place] = entry
        else:
            self.entries.append(entry)
        assert entry.key is not None, "its rarity was measured"
        contents.keys[place] = entry.key
        contents.states[place] = entry.step.state
        contents.priorities[place] = entry.priority
        contents.versions[place] = entry.step.version
        contents.absent[place] = 0.0
        contents.written.add_(1)
        return place

    def rekey(self, keys: Tensor) -> None:
        """Replace the keys of all entries, [n, K], in the order of their places."""
        self.contents.keys[: len(keys)] = keys

    def draw(self, n: int) -> list[Entry]:
        """n entries, with replacement, by priority; none if n is below 1."""
        if n < 1:  # which `torch.multinomial` refuses
            return []
        weights = self.contents.priorities[: len(self.entries)].clamp(min=torch.finfo(torch.float32).tiny)
        return [self.entries[place] for place in torch.multinomial(weights, n, replacement=True).tolist()]

    def restore(self, entries: Iterable[Entry]) -> None:
        """Continue with the entries of a checkpoint, whose network has the rest."""
        self.entries = list(entries)
        self.contents.clear(len(self.entries))


def stack_entries(entries: Iterable[Entry]) -> Step:
    """The steps, side by side."""
    steps: Step = tree_map(lambda *each: torch.stack(each), *(entry.step for entry in entries))
    return steps


def pack_entries(entries: Sequence[Entry]) -> dict[str, Any]:
    """Entries for a checkpoint: few large tensors, since each tensor of a file takes time."""
    if not entries:
        return {}
    rollouts = [entry.rollout for entry in entries if entry.rollout is not None]
    unknown = torch.full_like(entries[0].step.state[:1], torch.nan)
    return {
        "steps": stack_entries(entries)._asdict(),
        "losses": torch.stack([unknown[0] if entry.loss is None else entry.loss for entry in entries]),
        "keys": torch.stack([entry.key for entry in entries if entry.key is not None] or [unknown]),
        "with_key": [entry.key is not None for entry in entries],
        "priorities": [entry.priority for entry in entries],
        "rollouts": Batch.join(rollouts)._asdict() if rollouts else None,
        "with_rollout": [entry.rollout is not None for entry in entries],
    }


def unpack_entries(state: dict[str, Any], device: torch.device, steps: int) -> Iterator[Entry]:
    """Entries from a checkpoint, without rollouts of another length than `steps`: they fit no batch any more."""
    if not state:
        return
    own = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, state)
    all_steps, keys = Step(**own["steps"]), iter(own["keys"])
    rollouts = Batch(**own["rollouts"]).each() if own["rollouts"] else iter(())
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
