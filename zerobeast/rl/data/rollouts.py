"""Rollouts as they arrived: rows of a record, which an algorithm assembles into a batch or stores.

rollouts = Rollouts(rows, record, env, device)
rollouts.batch        # [T + 1, B] tensors on the device, the frame stacks rebuilt
rollouts.rows         # the same as bytes, each frame once: what a replay stores
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.wire import ROLLOUT_FIELDS, EnvSpec, Origin, RecordSpec
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.ops.columns import columns, read_observations
from zerobeast.rl.ops.frames import stack_frames
from zerobeast.rl.ops.tree import tree_map

#: fields that a batch takes from the rollout record as they are, but time-major
RECORDED_FIELDS = ["reward", "terminated", "truncated", "last_action", "policy_version", "action_mask"]


@dataclass(frozen=True)
class Rollouts:
    """B rollouts of T steps.

    Args:
      rows: [B] of `record`, in memory that may be reused once they are learned from or stored.
      record: the layout of a row.
      env: what the rows hold.
      device: of the batch.
      steps: number of agent steps that may be learned from; counted row by row, any beyond it are masked; None: all.
      tasks: [B], which of the run's environments each row is from; None: all from the first.
      origins: [B, 5], the `Origin` of each row; None: they come from no message.
    """

    rows: NDArray[np.void]
    record: RecordSpec
    env: EnvSpec
    device: torch.device
    steps: int | None = None
    tasks: NDArray[np.int64] | None = None
    origins: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """[B, T]: True for transitions that are no seam between episodes and are within the budget of `steps`."""
        valid: NDArray[np.bool_] = ~to_bools(self.rows["first"])[:, 1:]
        return valid if self.steps is None else valid & (np.arange(valid.size).reshape(valid.shape) < self.steps)

    @cached_property
    def batch(self) -> Batch:
        """As tensors: one copy to the device, then views."""
        tasks = np.zeros(len(self), np.int64) if self.tasks is None else self.tasks
        origins = np.zeros((len(self), len(Origin._fields)), np.int64) if self.origins is None else self.origins
        content = torch.from_numpy(self.rows.view(np.uint8).reshape(len(self), -1)).to(self.device, non_blocking=True)
        fields = tree_map(_any_byte, columns(content, self.record.dtype))  # a peer may send any byte as a bool
        first = torch.from_numpy(to_bools(self.rows["first"]))  # stack_frames reads it on the CPU
        obs = read_observations(self.env.obs, fields["obs"])
        return Batch(
            obs=tree_map(lambda frames: stack_frames(frames, first, self.env.frame_stack), obs),
            first=_time_major(first).to(self.device),
            core_state=fields["core_state"],
            **{name: tree_map(_time_major, fields[name]) for name in RECORDED_FIELDS if name in fields},
            extras={name: _time_major(fields[name]) for name in fields if name not in ROLLOUT_FIELDS},
            mask=_time_major(torch.from_numpy(self.valid)).to(self.device),
            task=torch.from_numpy(tasks).to(self.device),
            origin=torch.from_numpy(origins).to(self.device),
        )

    def join_old(self, old: Batch) -> Rollouts:
        """These rollouts, with the rows of `old` at the end of their batch, which are not counted as agent steps."""
        joined = replace(self)
        vars(joined)["batch"] = Batch.join([self.batch, old])  # as `cached_property` keeps it
        return joined


def _any_byte(values: Tensor) -> Tensor:
    return values.view(torch.uint8) != 0 if values.dtype is torch.bool else values


def to_bools(taken: NDArray[Any]) -> NDArray[Any]:
    """A copy whose bools are 0 or 1: a peer may send any byte as one."""
    return taken.view(np.uint8) != 0 if taken.dtype == np.bool_ else taken


def _time_major(values: Tensor) -> Tensor:
    return values.transpose(0, 1)
