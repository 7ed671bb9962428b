"""An environment that reports infos and takes options; its id is `tests.integration.info_env:Info-v0`."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics

Infos = dict[str, Any]


class Info(gymnasium.Env):
    """A random walk from `options["start"]`; each episode has a random length.

    The first copy that is reset with `options["exit_once"]`, a file, creates it and exits its process.
    """

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Infos]:
        super().reset(seed=seed)
        wanted = options or {}
        if not (file := Path(wanted.get("exit_once", "/"))).exists():
            file.touch()
            os._exit(3)
        self.at, self.count = float(wanted.get("start", 0)), 0
        self.length = int(self.np_random.integers(3, 9))
        return self._obs(), {"length": self.length, "options": options is not None}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Infos]:
        self.count += 1
        self.at += self.np_random.normal()
        info: Infos = {"pair": np.array([self.at, self.count]), "nested": {"count": self.count, "text": "no"}}
        if self.count % 2:
            info["odd"] = np.float32(self.at)
        left_out = {"text": "no", "none": None, "list": [1], "large": np.zeros(10_000), "nd": 1, "_hidden": 1}
        left_out |= {"deep": {"deeper": {"x": 1}}, "x" * 101: 1, "object": object()}
        return self._obs(), self.at, False, self.count >= self.length, info | left_out

    def _obs(self) -> np.ndarray:
        return np.array([self.at], np.float32)


gymnasium.register("Info-v0", lambda: RecordEpisodeStatistics(Info()))
