"""Steps of stored rows as tensors: each field is viewed once as [capacity, T + 1, ...] and gathered by (slot, t)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.wire import ROLLOUT_FIELDS, EnvSpec
from zerobeast.common.wire.stacks import stack_places
from zerobeast.rl.data.rollouts import to_bools
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.columns import read_observations
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.replay.frames import CompressedFrames

Ints = NDArray[np.int64]

#: fields, besides `obs`, of which a row has T + 1 entries, the last of them repeated by the row that continues it
ARRIVALS = ("action_mask", "first", "reward", "terminated", "truncated", "last_action")


class RowFields:
    """The fields of rows, read in place.

    Args:
      rows: [capacity] of rollouts of T steps.
      frames: of the rows; None: they are among the fields.
      env: what the rows hold.
      device: of the tensors.
    """

    def __init__(
        self, rows: NDArray[np.void], frames: CompressedFrames | None, env: EnvSpec, device: torch.device
    ) -> None:
        self._fields: dict[str, Any] = {name: _arrays(rows[name]) for name in rows.dtype.names or ()}
        self._frames, self._k, self._space, self._device = frames, env.frame_stack, env.obs, device
        self._arrivals: list[Any] = leaves({name: self._fields[name] for name in ARRIVALS if name in self._fields})
        self._extras = [name for name in self._fields if name not in ROLLOUT_FIELDS]
        self.capacity, self.steps = len(rows), self._fields["first"].shape[1] - 1

    def values(self, name: str, *where: Ints) -> NDArray[Any]:
        """[N, *shape] of a field of one array at steps, slots and t; [N, T + 1, *shape] of whole rows, slots alone."""
        return to_bools(self._fields[name][where])

    def entries(self, name: str, slots: Ints, ts: Ints) -> Any:
        """[N, *shape] of a field at steps, or a tree of such."""
        return tree_map(lambda column: self.tensor(to_bools(column[slots, ts])), self._fields[name])

    def core_state(self, slots: Ints) -> Tensor:
        """[N, core_size] before step 0 of rows; zeros where a slot is -1."""
        return self.tensor(np.where(slots[:, None] < 0, np.float32(0), self._fields["core_state"][slots]))

    def extras(self, slots: Ints, ts: Ints) -> dict[str, Tensor]:
        """[N, *shape] each: what the policy answered to obs[t], besides actions."""
        return {name: self.entries(name, slots, ts) for name in self._extras}

    def inputs(self, slots: Ints, ts: Ints, *, obs: bool) -> StepInput:
        """[N, ...] of what the policy got at steps; without `obs`, an empty tensor stands for it."""
        return StepInput(
            obs=self._obs(slots, ts) if obs else torch.empty(0, device=self._device),
            last_action=self.entries("last_action", slots, ts),
            reward=self.entries("reward", slots, ts),
            first=self.entries("first", slots, ts),
            action_mask=self.entries("action_mask", slots, ts) if "action_mask" in self._fields else None,
        )

    def continues(self, before: int, after: int) -> bool:
        """Whether the row in slot `after` begins with the step that the one in slot `before` ends with, bit for bit.

        A sender that drops rollouts leaves no gap in their numbers, so only the steps tell.
        """
        return self._arrival_bits(before, self.steps) == self._arrival_bits(after, 0)

    def tensor(self, values: NDArray[Any]) -> Tensor:
        """As a tensor on the device."""
        return torch.from_numpy(values).to(self._device)

    def _arrival_bits(self, slot: int, t: int) -> list[bytes]:
        """The bits of all that arrived at a step, with its newest frame alone."""
        newest: Any = leaves(self._take_frames(np.array([slot]), np.array([[t + self._k - 1]])))
        return [part.tobytes() for part in (*newest, *(column[slot, t] for column in self._arrivals))]

    def _obs(self, slots: Ints, ts: Ints) -> Any:
        """[N, (k,) *frame], or a tree of such."""
        if self._k == 1:
            frames = tree_map(lambda frames: self.tensor(to_bools(frames)[:, 0]), self._take_frames(slots, ts[:, None]))
            return read_observations(self._space, frames)
        stacks = self._take_frames(slots, stack_places(self._fields["first"].view(np.uint8), slots, ts, self._k))
        return read_observations(self._space, tree_map(lambda frames: self.tensor(to_bools(frames)), stacks))

    def _take_frames(self, slots: Ints, at: Ints) -> Any:
        """[N, M, *frame], or a tree of such: the frames `at` [N, M] of rows in `slots` [N]."""
        if self._frames:
            return self._frames.take(slots, at)
        return tree_map(lambda frames: frames[slots[:, None], at], self._fields["obs"])


def _arrays(column: NDArray[Any]) -> Any:
    """Views of a field: the field itself, or a dict of views of its parts."""
    names = column.dtype.names
    return column if names is None else {name: _arrays(column[name]) for name in names}
