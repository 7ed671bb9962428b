"""A point that has to reach a goal between others, whose number and places are new in every episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary

RADIUS = 0.15  #: within which the point reaches the goal, or touches another


class Reach(gymnasium.Env[Any, Any]):
    """The reward is how much nearer to the goal a step leads, 1 at the goal, and -0.25 if the point touches another.

    Args:
      most: of the others; each is there in half of the episodes.
      steps: after which an episode is truncated.
    """

    def __init__(self, most: int, steps: int) -> None:
        goal, others = Box(-2, 2, (2,)), Box(-2, 2, (most, 2))  # as seen from the point
        self.observation_space = Dict(goal=goal, others=others, present=MultiBinary(most))
        self.action_space = Box(-1, 1, (2,))
        self.most, self.steps = most, steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.point, self.goal, *others = self.np_random.uniform(-1, 1, (2 + self.most, 2))
        self.others, self.present = np.array(others), self.np_random.random(self.most) < 0.5
        self.left = self.steps
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        before = np.linalg.norm(self.goal - self.point)
        self.point = np.clip(self.point + 0.2 * action, -1, 1)
        self.left -= 1
        distance = np.linalg.norm(self.goal - self.point)
        touches = self.present & (np.linalg.norm(self.others - self.point, axis=1) < RADIUS)
        reached = bool(distance < RADIUS)
        reward = before - distance + reached - 0.25 * touches.any()
        return self._observe(), float(reward), reached, self.left == 0, {}

    def _observe(self) -> dict[str, Any]:
        others = (self.others - self.point) * self.present[:, None]
        floats = {"goal": self.goal - self.point, "others": others}
        return {name: value.astype(np.float32) for name, value in floats.items()} | {"present": self.present}
