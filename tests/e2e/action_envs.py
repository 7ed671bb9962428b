"""Tasks whose observation says which action is right, one for each kind of action that is not a single choice."""

from typing import Any

import gymnasium
import numpy as np

LENGTH = 8  #: steps of an episode


class _Told(gymnasium.Env[np.ndarray, np.ndarray]):
    """A new target in every step; the reward is 1 if it is met."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._next(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        reward = self._reward(action)
        self._t += 1
        return self._next(), reward, False, self._t == LENGTH, {}

    def _next(self) -> np.ndarray:
        raise NotImplementedError

    def _reward(self, action: np.ndarray) -> float:
        raise NotImplementedError


class Panel(_Told):
    """Two switches of 3 and 4 positions; half the reward for each."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (7,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([3, 4])

    def _next(self) -> np.ndarray:
        self._target = self.np_random.integers([3, 4])
        return np.concatenate([np.eye(n, dtype=np.float32)[i] for n, i in zip((3, 4), self._target, strict=True)])

    def _reward(self, action: np.ndarray) -> float:
        return float((action == self._target).mean())


class Aim(_Told):
    """A corner of a box of unequal sides; the reward falls by the distance in units of half a side.

    A policy that does not look returns at most 1.6, in the middle of the box.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))

    def _next(self) -> np.ndarray:
        self._target = self.np_random.choice([-0.8, 0.8], 2).astype(np.float32)
        return self._target

    def _reward(self, action: np.ndarray) -> float:
        return 1.0 - float(np.abs((action - [0.0, 5.0]) / [2.0, 5.0] - self._target).mean())


gymnasium.register("Panel-v0", entry_point=Panel)
gymnasium.register("Aim-v0", entry_point=Aim)
