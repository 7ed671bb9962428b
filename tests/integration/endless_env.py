"""An environment whose episodes never end; its id is `tests.integration.endless_env:Endless`."""

from typing import Any

import gymnasium
import numpy as np


class Endless(gymnasium.Env[Any, Any]):
    """Pays 1 in every step; as a test would wait for ever, too many steps are an error."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > 1000:
            raise RuntimeError("it is not cut off")
        return np.zeros(2, np.float32), 1.0, False, False, {}
