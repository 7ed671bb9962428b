"""A task that only memory solves: a cue is shown once, and several steps later the action must name it."""

from typing import Any

import gymnasium
import numpy as np

DELAY = 6  #: steps between the cue and the question


class RememberCue(gymnasium.Env[np.ndarray, int]):
    """obs = (cue at the first step else 0, 1 when asked else 0); +1 for the right answer, -1 for the wrong one."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._t = 0
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        asked = self._t == DELAY
        self._t += 1
        reward = (1.0 if action == self._cue else -1.0) if asked else 0.0
        return np.array([0, float(self._t == DELAY)], np.float32), reward, asked, False, {}


gymnasium.register("RememberCue-v0", entry_point=RememberCue)
