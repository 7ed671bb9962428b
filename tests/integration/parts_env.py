"""An environment with observations and actions of several parts; its id is `tests.integration.parts_env:Parts-v0`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Obs = dict[str, Any]


class Parts(gymnasium.Env):
    """Observations are random, except that "done" is the last aim; episodes are terminated or truncated at random."""

    observation_space = spaces.Dict(
        {
            "bits": spaces.MultiBinary(3),
            "done": spaces.Box(-1, 1, (2,), np.float32),
            "image": spaces.Box(0, 255, (4, 5), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 5], start=[0, 7]))),
        }
    )
    action_space = spaces.Dict(
        {
            "aim": spaces.Box(-1, 1, (2,), np.float32),
            "pick": spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(2))),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(np.zeros(2, np.float32)), {}

    def step(self, action: dict[str, Any]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        number, bits = action["pick"]
        drawn = int(self.np_random.integers(20))
        return self._obs(action["aim"]), float(number + bits.sum()), drawn == 0, drawn == 1, {"drawn": drawn}

    def _obs(self, done: np.ndarray) -> Obs:
        draw = self.np_random.integers
        return {
            "bits": draw(2, size=3).astype(np.int8),
            "done": done,
            "image": draw(256, size=(4, 5)).astype(np.uint8),
            "pair": (np.int64(draw(3)) - 1, np.array([0, 7]) + draw(np.array([2, 5]))),
        }


gymnasium.register("Parts-v0", Parts)
