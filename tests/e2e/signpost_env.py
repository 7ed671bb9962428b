"""A task that needs every part of a nested observation, both parts of a hybrid action, and the mask.

A signpost shows a picture with one bright quadrant, and a word. Their sum says where to go. The first of two numbers
says where to aim; the second means nothing. Two ways are always closed: an illegal choice raises.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 10
SIDE = 12
WAYS, WORDS = 4, 3
BAIT = WAYS  #: always illegal


class Signpost(gymnasium.Env[Any, Any]):
    """Ten signposts; each pays up to 1."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
            "text": spaces.Tuple([spaces.Discrete(WORDS, start=1), spaces.MultiBinary(2)]),
            "numbers": spaces.Box(-1, 1, (2,), np.float64),
        }
    )
    action_space = spaces.Dict({"aim": spaces.Box(-1, 1, (1,), np.float64), "go": spaces.Discrete(WAYS + 1)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = LENGTH
        return self._next()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._open[action["go"]]:
            raise ValueError(f"the way {action['go']} is closed")
        assert action["aim"].dtype == np.float64
        reward = 0.5 * (action["go"] == self._way) + 0.5 * (1 - abs(action["aim"][0] - self._target))
        self._left -= 1
        return *self._shown(reward), {"action_mask": self._open.astype(np.int8)}

    def _shown(self, reward: float) -> tuple[Any, float, bool, bool]:
        return self._next()[0], float(reward), self._left == 0, False

    def _next(self) -> tuple[Any, dict[str, Any]]:
        quadrant, word = int(self.np_random.integers(WAYS)), int(self.np_random.integers(WORDS))
        self._way, self._target = (quadrant + word) % WAYS, self.np_random.uniform(-1, 1)
        self._open = np.ones(WAYS + 1, np.bool_)
        self._open[[BAIT, (self._way + 1) % WAYS]] = False
        picture = np.zeros((2, SIDE // 2, 2, SIDE // 2), np.uint8)
        picture[quadrant // 2, :, quadrant % 2, :] = 255
        obs = {
            "picture": picture.reshape(SIDE, SIDE),
            "text": (word + 1, self.np_random.integers(0, 2, 2, dtype=np.int8)),
            "numbers": np.array([self._target, self.np_random.uniform(-1, 1)]),
        }
        return obs, {"action_mask": self._open.astype(np.int8)}


gymnasium.register("Signpost-v0", Signpost)
