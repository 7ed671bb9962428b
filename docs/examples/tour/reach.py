"""An environment of one's own: move a point to a goal. Observations are a Dict, actions a Box."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

LIMIT = 50  #: steps of an episode


class Reach(gymnasium.Env):
    """A point in a square.

    Args:
      size: side of the square.
    """

    def __init__(self, size: float = 1.0) -> None:
        side = Box(0.0, size, (2,), np.float32)
        self.observation_space = Dict({"point": side, "goal": side})
        self.action_space = Box(-0.1, 0.1, (2,), np.float32)
        self._size = size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._point, self._goal = self.np_random.uniform(0, self._size, (2, 2)).astype(np.float32)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        self._point = np.clip(self._point + action, 0, self._size).astype(np.float32)
        distance = float(np.linalg.norm(self._point - self._goal))
        there = distance < 0.05 * self._size
        return self._seen(), -distance, there, self._steps >= LIMIT, {"success": there}

    def _seen(self) -> dict[str, np.ndarray]:
        return {"point": self._point.copy(), "goal": self._goal.copy()}
