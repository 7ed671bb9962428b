"""Observations of N environments from their rows, with frames stacked if the environment says so."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.remote.source import Mask
from zerobeast.clients.remote.spaces import composed
from zerobeast.common.wire.spaces import by_array
from zerobeast.common.wire.specs import EnvSpec


class Observations:
    """The newest observation of each environment, of `frame_stack` frames.

    Early in an episode, copies of its first frame stand in for the missing ones, as in
    `gymnasium.wrappers.FrameStackObservation`.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._space, self._stacked = spec.obs, spec.frame_stack > 1
        lead = (num_envs, spec.frame_stack) if self._stacked else (num_envs,)
        self._arrays = [np.zeros((*lead, *array.shape), array.dtype) for array in spec.obs.arrays]

    def take(self, rows: NDArray[Any], chosen: Mask, first: Mask) -> None:
        """Take the newest frames of some environments.

        Args:
          rows: [N] of `step_record`.
          chosen: [N] whose frames to take.
          first: [N] which environments begin an episode.
        """
        for kept, (_, column) in zip(self._arrays, by_array(self._space, rows["obs"]), strict=True):
            if not self._stacked:
                np.copyto(kept, column, where=chosen.reshape(-1, *[1] * (column.ndim - 1)))
                continue
            going = chosen & ~first
            kept[going, :-1] = kept[going, 1:]
            kept[going, -1] = column[going]
            kept[chosen & first] = column[chosen & first, None]

    def all(self) -> Any:
        """Copies of all observations, [N, ...] each, nested as gymnasium does."""
        return composed(self._space, iter([array.copy() for array in self._arrays]))

    def each(self, chosen: Mask) -> NDArray[np.object_]:
        """[N] observations of single environments, None for those not chosen, as in gymnasium's `final_obs`."""
        found = np.full(len(chosen), None, dtype=object)
        for i in np.flatnonzero(chosen):
            found[i] = composed(self._space, iter([array[i].copy() for array in self._arrays]))
        return found
