"""A batch: whole rollouts as tensors, in the form that networks and losses take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.frames import single_frames, stack_frames
from zerobeast.rl.ops.tree import leaves, tree_map


class Batch(NamedTuple):
    """B unrolls of T steps and the step after them, time-major; see `common.wire.records` for the time index."""

    #: [T + 1, B, *frame], or [T + 1, B, k, *frame] with a frame stack of k > 1; packed [T + k, B, *frame]; a tree of
    #: such if an observation has several arrays
    obs: Any
    first: Tensor  #: [T + 1, B] bool
    reward: Tensor  #: [T + 1, B] float32, unclipped
    terminated: Tensor  #: [T + 1, B] bool
    truncated: Tensor  #: [T + 1, B] bool
    last_action: Any  #: [T + 1, B, *action shape], or a tree of such
    extras: dict[str, Tensor]  #: [T, B, *shape] each, by name: what the behaviour policy answered besides actions
    policy_version: Tensor  #: [T, B] int64
    core_state: Tensor  #: [B, core_size] before step 0
    mask: Tensor  #: [T, B] bool, False where transition t is void (first[t + 1]) or beyond the step budget
    task: Tensor  #: [B] int64, which of the run's environments each row is from: an index into `env.id`
    origin: Tensor  #: [B, 5] int64, the `Origin` of each row
    action_mask: Tensor | None = None  #: [T + 1, B, choices] bool, True where legal; None: all are

    @property
    def inputs(self) -> StepInput:
        """The network's inputs at all T + 1 steps."""
        return StepInput(self.obs, self.last_action, self.reward, self.first, self.action_mask)

    @property
    def actions(self) -> Any:
        """[T, B, *action shape] of the transitions, or a tree of such."""
        return tree_map(lambda entry: entry[1:], self.last_action)

    @property
    def away(self) -> Tensor:
        """[T, B] bool: steps of agents that have left or not joined, whose rows are the first of episodes for long."""
        return self.first[:-1] & self.first[1:]

    @property
    def legal(self) -> Tensor | None:
        """[T, B, choices] bool: which actions were legal; None: all."""
        return None if self.action_mask is None else self.action_mask[:-1]

    def copy(self) -> Batch:
        """A copy in memory of its own, for a `Learning` that keeps batches."""
        copied: Batch = tree_map(torch.clone, self)
        return copied

    def pack(self, frame_stack: int) -> Batch:
        """A copy that takes as little memory as possible: it holds each frame once."""
        return self._replace(obs=self.obs if frame_stack == 1 else tree_map(single_frames, self.obs)).copy()

    def unpack(self) -> Batch:
        """The batch that was packed, bit for bit."""
        k = len(leaves(self.obs)[0]) - len(self.first) + 1
        if k == 1:
            return self
        first = self.first.transpose(0, 1)
        return self._replace(obs=tree_map(lambda frames: stack_frames(frames.transpose(0, 1), first, k), self.obs))

    def pick(self, rows: Tensor) -> Batch:
        """A copy of the rows at these indices [n]."""
        return self._by_row(lambda entry, at: entry.index_select(at, rows))

    def each(self) -> Iterator[Batch]:
        """A copy of each row."""
        return map(self.pick, torch.arange(self.mask.shape[1], device=self.mask.device).view(-1, 1))

    @staticmethod
    def join(batches: Sequence[Batch]) -> Batch:
        """All rows of batches with the same number of steps, in this order."""
        first, *others = batches
        return first._by_row(lambda entry, at, *more: torch.cat([entry, *more], at), *others)

    @classmethod
    def restore(cls, entries: dict[str, Any], device: torch.device) -> Batch:
        """A batch that was saved as `_asdict()`, on a device."""
        restored: Batch = tree_map(lambda entry: entry.to(device), cls(**entries))
        return restored

    def _by_row(self, function: Callable[..., Tensor], *others: Batch) -> Batch:
        """Apply `function(entry, dimension of rows, *same entry of others)` to every entry."""
        entries = zip(self._fields, self, *others, strict=True)
        return Batch._make(
            tree_map(lambda entry, *more, at=int(name not in _ROWS_FIRST): function(entry, at, *more), *parts)
            for name, *parts in entries
        )


_ROWS_FIRST = ("core_state", "task", "origin")  #: entries without a time dimension
