"""An environment whose observations show who it is, which episode and which step, and so which action it must get.

obs = (who, episode, step), all whole numbers; `zerobeast_tools.chaos.witness.algorithm` computes the right action and
checks every rollout. An action that was meant for another environment, episode or step raises.
It is slow on purpose, so that the rate of a run depends on it alone and not on what else the machine has to do.
"""

import secrets
import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

ENV_ID = "zerobeast_tools.chaos.witness.env:Witness-v0"
ACTIONS = 5
MAX_STEPS = 1 << 23  #: sums of whole numbers below it are exact in float32
SHORTEST, LONGEST = 3, 40  #: steps of an episode

Obs = NDArray[np.float32]


def right_action(who: Any, episode: Any, step: Any) -> Any:
    """The only action that this observation may be answered with; numbers, arrays or tensors of whole numbers."""
    return (who + 7 * episode + 3 * step) % ACTIONS


def reward_of(who: Any, step: Any) -> Any:
    """The reward of the step that leads to this observation."""
    return (who + step) % 3


class WitnessEnv(gymnasium.Env[Obs, Any]):
    """Episodes of random length that end alternately terminated and truncated.

    Args:
      pace_s: seconds from one step to the next, at least.
      strict: False: any action will do, for policies of other algorithms.
    """

    observation_space = gymnasium.spaces.Box(0.0, MAX_STEPS, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(ACTIONS)

    def __init__(self, pace_s: float = 0.0, *, strict: bool = True) -> None:
        self._pace_s, self._strict = pace_s, strict
        self._due = 0.0
        self._who = secrets.randbelow(MAX_STEPS - 1) + 1
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        self._length = int(self.np_random.integers(SHORTEST, LONGEST + 1))
        return self._obs(), {}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take one step. Raises ValueError if the action is not the answer to the newest observation."""
        wanted = right_action(self._who, self._episode, self._step)
        if self._strict and action != wanted:
            raise ValueError(f"step {self._step} of episode {self._episode} got action {action}, expected {wanted}")
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + self._pace_s
        self._step += 1
        over, terminates = self._step == self._length, bool(self._episode % 2)
        reward = float(reward_of(self._who, self._step))
        return self._obs(), reward, over and terminates, over and not terminates, {}

    def _obs(self) -> Obs:
        return np.array([self._who, self._episode, self._step], np.float32)


gymnasium.register("Witness-v0", entry_point=f"{__name__}:WitnessEnv")
