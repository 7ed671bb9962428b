"""A corridor whose end pays: an environment that is learned in seconds, but only with values that look ahead."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

LENGTH, MOST_STEPS = 4, 24
Obs = NDArray[np.float32]


class Corridor(gymnasium.Env[Obs, Any]):
    """Each step leads one place on or back; the end pays 1 and ends the episode. What leads on differs by place.

    Args:
      real: whether actions are real numbers, of which the sign counts, and not one of two choices.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (LENGTH,), np.float32)

    def __init__(self, *, real: bool = False) -> None:
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32) if real else gymnasium.spaces.Discrete(2)
        self.real = real

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.taken = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        chosen = int(action[0] > 0) if self.real else int(action)
        on = chosen == self.place % 2
        self.place, self.taken = max(0, self.place + (1 if on else -1)), self.taken + 1
        there = self.place == LENGTH
        return self.seen(), float(there), there, self.taken == MOST_STEPS and not there, {}

    def seen(self) -> Obs:
        seen: Obs = np.eye(LENGTH + 1, LENGTH, dtype=np.float32)[self.place]
        return seen


for name, real in (("Corridor-v0", False), ("RealCorridor-v0", True)):
    gymnasium.register(name, f"{__name__}:Corridor", kwargs={"real": real})
