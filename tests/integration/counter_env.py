"""Predictable environments, with ids such as `tests.integration.counter_env:Counter-v0`."""

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """The observation counts the steps of the episode, which ends at `length`; the reward is the action taken."""

    def __init__(
        self,
        length: int = 5,
        ending: str = "truncated",
        raise_at: int = 0,
        block_file: str = "",
        stray_shape: bool = False,
    ) -> None:
        self.observation_space = spaces.Box(0, 1000, (2,), np.int64)
        self.action_space = spaces.Discrete(10, start=100)
        self.length, self.ending = length, ending
        self.raise_at, self.block_file = raise_at, block_file
        self.stray_shape = stray_shape
        self.count = self.seed_seen = 0

    def _obs(self) -> np.ndarray:
        return np.array([self.count, self.seed_seen])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.count, self.seed_seen = 0, -1 if seed is None else seed
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert type(action) is int
        assert self.action_space.contains(action)
        self.count += 1
        if self.count == self.raise_at:
            raise RuntimeError("this environment raises on purpose")
        while self.block_file and os.path.exists(self.block_file):
            pass
        over = self.count >= self.length
        obs = self._obs()[:1] if self.stray_shape else self._obs()
        return obs, float(action - 100), over and self.ending == "terminated", over and self.ending == "truncated", {}


class Strange(gymnasium.Env):
    """A dictionary of observations, float64 bounds and a strided array."""

    def __init__(self, kind: str = "dict") -> None:
        self.kind = kind
        self.observation_space = {
            "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float64), "b": spaces.Discrete(3)}),
            "strided": spaces.Box(0, 255, (3, 4), np.uint8),
            "discrete": spaces.Discrete(7),
            "bool": spaces.MultiBinary(3),
            "text": spaces.Text(5),
        }[kind]
        self.action_space = spaces.Box(-0.1, 0.1, (2,), np.float64)

    def _obs(self) -> Any:
        return {
            "dict": {"a": np.array([0.5, -0.25]), "b": 2},
            "strided": np.arange(24, dtype=np.uint8).reshape(4, 6)[:, ::2].T,
            "discrete": 4,
            "bool": np.array([1, 0, 1], np.int8),
            "text": "abc",
        }[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        return self._obs(), float(action.sum()), False, False, {}


gymnasium.register("Counter-v0", Counter)
gymnasium.register("Strange-v0", Strange)
