"""What the broker keeps of every environment between two requests: newest frames, last action, recurrent state.

Each environment owns one slot, an index into tensors on the inference device; the environments of one session own
consecutive ones. A batch addresses them through an index tensor, so no operation here costs Python per environment.

Frames are kept in a ring of k per slot: a step writes one frame and gathers k. The ring position is `age % k`, age
being the number of steps since the episode's first, so a reset needs no copy: the gather clips to the first frame.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerobeast.common.wire import EnvSpec, RecordSpec, nest_values
from zerobeast.common.wire.spaces import field_of
from zerobeast.rl.ops.columns import columns, read_observations, torch_dtype
from zerobeast.rl.ops.tree import leaves, tree_map

WORD = 8  #: bytes: fields of a row are padded to it, so frames move in 64-bit words


class SlotRanges:
    """Hands out ranges of slot numbers below `limit`, first fit, and takes them back."""

    def __init__(self, limit: int) -> None:
        self._taken, self._end = list[range](), range(limit, limit)  # disjoint, ascending

    def allocate(self, n: int) -> range | None:
        """n > 0 consecutive numbers, or None if no gap is that long."""
        start = 0
        for place, taken in enumerate([*self._taken, self._end]):
            if taken.start - start >= n:
                self._taken.insert(place, range(start, start + n))
                return self._taken[place]
            start = taken.stop
        return None

    def release(self, slots: range) -> None:
        self._taken.remove(slots)


class SlotState:
    """The tensors behind the slots.

    Args:
      env: shapes of frames and actions, and k, the depth of the frame stack.
      core_size: H, floats of recurrent state.
      max_rows: largest batch.
    """

    def __init__(self, env: EnvSpec, core_size: int, max_rows: int, device: torch.device) -> None:
        self.stack, self._space = env.frame_stack, env.obs
        self._frame = RecordSpec.of(field_of("obs", env.obs, packed=True)).dtype["obs"]
        self.words = -(-self._frame.itemsize // WORD)
        self.size = 0
        kept = self.stack if self.stack > 1 else 0
        self._frames = torch.zeros(0, kept, self.words, dtype=torch.int64, device=device)
        self._age = torch.zeros(0, dtype=torch.int64, device=device)
        empty = (torch.zeros(0, *a.shape, dtype=torch_dtype(a.dtype), device=device) for a in env.action.arrays)
        self._action = nest_values(env.action, empty)
        self._core = torch.zeros(0, core_size, device=device)
        self._gathered = torch.zeros(max_rows * kept, self.words, dtype=torch.int64, device=device)
        self._steps_back = torch.arange(kept - 1, -1, -1, device=device)  # of each place in a stack, oldest first

    def bytes_per_slot(self) -> int:
        """Memory that one more environment takes."""
        tensors = (self._frames, self._age, *leaves(self._action), self._core)
        return sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)

    def reserve(self, size: int) -> None:
        """Make room for slots 0 to size - 1. Grows by at least half, so that growing stays rare."""
        if size <= self.size:
            return
        self.size = max(size, self.size * 3 // 2)
        self._frames, self._age = _grow(self._frames, self.size), _grow(self._age, self.size)
        self._action = tree_map(lambda entries: _grow(entries, self.size), self._action)
        self._core = _grow(self._core, self.size)

    def push(self, slots: Tensor, frames: Tensor, first: Tensor) -> Any:
        """Add the newest frames and return the stacks that end with them.

        Args:
          slots: [B] int64, without duplicates.
          frames: [B, words] int64, each frame's bytes padded to whole words.
          first: [B] bool, the frame opens an episode.

        Returns:
          [B, k, *frame], oldest first, an episode's first frame repeated before its start; [B, *frame] if k is 1;
          a tree of these if an observation has several arrays. Valid until the next call.
        """
        if self.stack == 1:
            return self._to_tensors(frames)
        age = (self._age.index_select(0, slots) + 1).masked_fill_(first, 0)
        self._age.index_copy_(0, slots, age)
        base = slots * self.stack
        ring = self._frames.view(-1, self.words)
        _put(ring, base + age % self.stack, frames)
        places = (age[:, None] - self._steps_back).clamp_(min=0).remainder_(self.stack) + base[:, None]
        gathered = self._gathered[: len(slots) * self.stack]
        torch.index_select(ring, 0, places.view(-1), out=gathered)
        return tree_map(lambda frames: frames.unflatten(0, (len(slots), self.stack)), self._to_tensors(gathered))

    def recall(self, slots: Tensor, first: Tensor) -> tuple[Any, Tensor]:
        """Last action, a tree of [B, ...], and recurrent state [B, H] of these slots, zero where `first`."""

        def recall_entries(kept: Tensor) -> Tensor:
            entries = kept.index_select(0, slots)
            return entries.masked_fill_(first.view(-1, *[1] * (entries.ndim - 1)), 0)

        return tree_map(recall_entries, self._action), recall_entries(self._core)

    def remember(self, slots: Tensor, action: Any, core: Tensor) -> None:
        """Keep the action, a tree of [B, ...], and the recurrent state [B, H] after a step."""
        tree_map(lambda kept, taken: kept.index_copy_(0, slots, taken.to(kept.dtype)), self._action, action)
        if self._core.shape[1]:
            _put(self._core, slots, core)

    def _to_tensors(self, words: Tensor) -> Any:
        return read_observations(self._space, columns(words.view(torch.uint8)[:, : self._frame.itemsize], self._frame))


def _grow(tensor: Tensor, size: int) -> Tensor:
    larger = tensor.new_zeros(size, *tensor.shape[1:])
    larger[: len(tensor)] = tensor
    return larger


def _put(store: Tensor, index: Tensor, rows: Tensor) -> None:
    """store[index] = rows. On the CPU as whole rows, five times faster than torch's walk over the elements."""
    if store.device.type != "cpu":
        store.index_copy_(0, index, rows)
        return
    whole = np.dtype((np.void, store.shape[1] * store.element_size()))
    store.numpy().view(whole)[index.numpy(), 0] = rows.numpy().view(whole)[:, 0]
