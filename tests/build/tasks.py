"""Small tasks, one for each thing that a policy has to learn from: `--env tests.build.tasks:<Name>-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

LENGTH, CUES, DELAY = 8, 4, 6
SIDE, WAYS, WORDS = 12, 4, 3
PLACES, MOST_STEPS = 4, 24


class Asking(gymnasium.Env[Any, Any]):
    """A new question in every step, whose answer is paid at once, at most 1; an episode is eight of them."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = LENGTH
        return self.ask(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        reward = float(self.paid(action))
        self._left -= 1
        return self.ask(), reward, self._left == 0, False, self.info()

    def ask(self) -> Any:
        """The next observation."""
        raise NotImplementedError

    def paid(self, action: Any) -> Any:
        """The reward."""
        raise NotImplementedError

    def info(self) -> dict[str, Any]:
        return {}


class Panel(Asking):
    """Two switches of 3 and 4 positions; half the reward for each."""

    observation_space = spaces.Box(0.0, 1.0, (7,), np.float32)
    action_space = spaces.MultiDiscrete([3, 4])

    def ask(self) -> NDArray[np.float32]:
        self._target = self.np_random.integers([3, 4])
        return np.concatenate([np.eye(n, dtype=np.float32)[i] for n, i in zip((3, 4), self._target, strict=True)])

    def paid(self, action: Any) -> Any:
        return (action == self._target).mean()


class Aim(Asking):
    """A corner of a box of unequal sides; the reward falls by the distance in units of half a side.

    A policy that does not look returns at most 1.6, in the middle of the box.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))

    def ask(self) -> NDArray[np.float32]:
        self._target = self.np_random.choice([-0.8, 0.8], 2).astype(np.float32)
        return self._target

    def paid(self, action: Any) -> Any:
        return 1.0 - np.abs((action - [0.0, 5.0]) / [2.0, 5.0] - self._target).mean()


class Cued(Asking):
    """A cue, and the action that names it is paid. Each task has cues of its own.

    Args:
      place: where in the observation the cues are; 0: the first four entries, 1: the next four.
      pay: reward for a right action.
      dtype: of an observation.
    """

    def __init__(self, place: int, pay: float, dtype: str = "float32") -> None:
        self.observation_space = spaces.Box(0, 1, (2 * CUES,), np.dtype(dtype).type)
        self.action_space = spaces.Discrete(CUES)
        self._place, self._pay = place, pay

    def ask(self) -> NDArray[Any]:
        self._cue = int(self.np_random.integers(CUES))
        obs = np.zeros(2 * CUES, self.observation_space.dtype)
        obs[CUES * self._place + self._cue] = 1.0
        return obs

    def paid(self, action: Any) -> Any:
        return self._pay * (action == self._cue)


class Signpost(Asking):
    """Needs every part of a nested observation, both parts of a hybrid action, and the mask.

    A signpost shows a picture with one bright quadrant, and a word. Their sum says where to go. The first of two
    numbers says where to aim; the second means nothing. Two ways are always closed: an illegal choice raises.
    """

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
            "text": spaces.Tuple([spaces.Discrete(WORDS, start=1), spaces.MultiBinary(2)]),
            "numbers": spaces.Box(-1, 1, (2,), np.float64),
        }
    )
    action_space = spaces.Dict({"aim": spaces.Box(-1, 1, (1,), np.float64), "go": spaces.Discrete(WAYS + 1)})

    def ask(self) -> dict[str, Any]:
        quadrant, word = int(self.np_random.integers(WAYS)), int(self.np_random.integers(WORDS))
        self._way, self._target = (quadrant + word) % WAYS, self.np_random.uniform(-1, 1)
        self._open = np.ones(WAYS + 1, np.int8)
        self._open[[WAYS, (self._way + 1) % WAYS]] = 0
        picture = np.zeros((2, SIDE // 2, 2, SIDE // 2), np.uint8)
        picture[quadrant // 2, :, quadrant % 2, :] = 255
        return {
            "picture": picture.reshape(SIDE, SIDE),
            "text": (word + 1, self.np_random.integers(0, 2, 2, dtype=np.int8)),
            "numbers": np.array([self._target, self.np_random.uniform(-1, 1)]),
        }

    def paid(self, action: Any) -> Any:
        if not self._open[action["go"]]:
            raise ValueError(f"the way {action['go']} is closed")
        assert action["aim"].dtype == np.float64
        return 0.5 * (action["go"] == self._way) + 0.5 * (1 - abs(action["aim"][0] - self._target))

    def info(self) -> dict[str, Any]:
        return {"action_mask": self._open}


class RememberCue(gymnasium.Env[Any, Any]):
    """Only memory solves it: obs = (cue at the first step else 0, 1 when asked else 0); +1 for the cue, -1 for another.

    It is asked for DELAY steps after it was shown.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._cue = int(self.np_random.integers(2))
        self._t = 0
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        asked = self._t == DELAY
        self._t += 1
        reward = (1.0 if action == self._cue else -1.0) if asked else 0.0
        return np.array([0, float(self._t == DELAY)], np.float32), reward, asked, False, {}


class Corridor(gymnasium.Env[Any, Any]):
    """Each step leads one place on or back; the end pays 1 and ends the episode. What leads on differs by place.

    Args:
      real: whether actions are real numbers, of which the sign counts, and not one of two choices.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (PLACES,), np.float32)

    def __init__(self, *, real: bool = False) -> None:
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32) if real else gymnasium.spaces.Discrete(2)
        self.real = real

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.taken = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = int(action[0] > 0) if self.real else int(action)
        on = chosen == self.place % 2
        self.place, self.taken = max(0, self.place + (1 if on else -1)), self.taken + 1
        there = self.place == PLACES
        return self.seen(), float(there), there, self.taken == MOST_STEPS and not there, {}

    def seen(self) -> Any:
        return np.eye(PLACES + 1, PLACES, dtype=np.float32)[self.place]


for task in ("Panel", "Aim", "Signpost", "RememberCue", "Corridor"):
    gymnasium.register(f"{task}-v0", f"{__name__}:{task}")
gymnasium.register("RealCorridor-v0", f"{__name__}:Corridor", kwargs={"real": True})
for name, place, pay, dtype in (
    ("Cheap", 0, 1.0, "float32"),
    ("Dear", 1, 10_000.0, "float32"),
    ("Exact", 1, 1.0, "int8"),
):
    gymnasium.register(f"{name}-v0", f"{__name__}:Cued", kwargs={"place": place, "pay": pay, "dtype": dtype})
