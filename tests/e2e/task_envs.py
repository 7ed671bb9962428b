"""Tasks for one policy that pay very differently, and one with observations of another type."""

from typing import Any

import gymnasium
import numpy as np

LENGTH, CUES = 8, 4


class Cued(gymnasium.Env[np.ndarray, int]):
    """A new cue in every step, and the action that names it is paid. Each of the tasks has cues of its own.

    Args:
      place: where in the observation the cues are; 0: the first four entries, 1: the next four.
      pay: reward for a right action.
      dtype: of an observation.
    """

    def __init__(self, place: int, pay: float, dtype: str = "float32") -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (2 * CUES,), np.dtype(dtype).type)
        self.action_space = gymnasium.spaces.Discrete(CUES)
        self._place, self._pay = place, pay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._next(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = self._pay * (action == self._cue)
        self._t += 1
        return self._next(), reward, self._t == LENGTH, False, {}

    def _next(self) -> np.ndarray:
        self._cue = int(self.np_random.integers(CUES))
        obs = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        obs[CUES * self._place + self._cue] = 1.0
        return obs


gymnasium.register("Cheap-v0", entry_point=Cued, kwargs={"place": 0, "pay": 1.0})
gymnasium.register("Dear-v0", entry_point=Cued, kwargs={"place": 1, "pay": 10_000.0})
gymnasium.register("Exact-v0", entry_point=Cued, kwargs={"place": 1, "pay": 1.0, "dtype": "int8"})
