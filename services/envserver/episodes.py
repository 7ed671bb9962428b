"""Statistics of whole episodes: unclipped rewards and agent steps, regardless of lost lives and settings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class EpisodeTracker:
    """Return and length so far of the current episode of each of N environments."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)

    def forget(self, envs: NDArray[Any] | slice) -> None:
        """Drop the episodes in progress of some environments, which were cut off.

        Args:
          envs: their indices, or a mask [N].
        """
        self._returns[envs] = 0
        self._lengths[envs] = 0

    def note(self, rows: NDArray[Any], only: NDArray[np.bool_] | None = None) -> list[list[float | int]]:
        """Apply `update` to rows [N] of `step_record`; some of their episodes may have been cut off without an end.

        With `only`, the rows answer a reset of these environments, and the others have not changed.
        """
        if only is not None:
            self.forget(only)
            return []
        self.forget(rows["first"])
        return self.update(rows["reward"], rows["first"], rows["terminated"] | rows["truncated"])

    def update(self, reward: NDArray[Any], void: NDArray[Any], over: NDArray[Any]) -> list[list[float | int]]:
        """Add one step.

        Args:
          reward: [N] as the environment gave it, unclipped.
          void: [N] whether the action was ignored, so that this was no agent step.
          over: [N] whether the whole episode ends here.

        Returns:
          [return, length in agent steps] of each episode that ended.
        """
        self._returns += reward
        self._lengths += ~void
        ended = np.flatnonzero(over)
        finished: list[list[float | int]] = [[float(self._returns[i]), int(self._lengths[i])] for i in ended]
        self.forget(ended)
        return finished
