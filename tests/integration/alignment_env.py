"""An environment that counts, so that a test knows every value that must arrive."""

from typing import Any

import gymnasium
import numpy as np

LENGTH = 5  #: steps of an episode


class AlignmentCounter(gymnasium.Env[np.ndarray, int]):
    """obs = steps since the episode began; episodes end after LENGTH steps, alternately terminated and truncated."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        self.episodes += 1
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        done = self.count == LENGTH
        return self._obs(), float(action), done and self.episodes % 2 == 1, done and self.episodes % 2 == 0, {}

    def _obs(self) -> np.ndarray:
        return np.full(2, self.count, np.uint8)


gymnasium.register("AlignmentCounter-v0", entry_point=AlignmentCounter)
