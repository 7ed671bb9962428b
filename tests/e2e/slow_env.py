"""An environment that takes its time without using the processor, as one that asks another program does."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class SlowEnv(gymnasium.Env[Any, Any]):
    """Episodes of 20 steps of 10 ms."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        time.sleep(0.01)
        self._steps += 1
        return np.zeros(4, np.float32), 1.0, self._steps == 20, False, {}


gymnasium.register("Slow-v0", SlowEnv)
