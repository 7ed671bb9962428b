"""Environments with ids such as `tests.build.envs:Counter`: what they show is known."""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics

HOME = __name__
COUNTER, STAGED = (f"{HOME}:{name}" for name in ("Counter", "Staged"))
ON_PURPOSE = "this environment raises on purpose"

Env = gymnasium.Env[Any, Any]
Info = dict[str, Any]
Step = tuple[Any, Any, Any, Any, Info]


class Counter(Env):
    """The observation has the steps of the episode and the newest seed, or -1; the reward is the action's number.

    Args:
      length: steps of an episode.
      ending: "terminated" or "truncated", or "" for both in turns.
      raise_at: step of an episode that raises.
      block_file: while this file exists, no step ends.
    """

    observation_space: spaces.Space[Any] = spaces.Box(0, 1000, (2,), np.int64)
    action_space: spaces.Space[Any] = spaces.Discrete(10, start=100)

    def __init__(self, length: int = 5, ending: str = "truncated", raise_at: int = 0, block_file: str = "") -> None:
        self.length, self.ending, self.raise_at, self.block_file = length, ending, raise_at, block_file
        self.count = self.seed_seen = self.episodes = 0

    def seen(self) -> Any:
        return np.array([self.count, self.seed_seen])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.count, self.seed_seen, self.episodes = 0, -1 if seed is None else seed, self.episodes + 1
        return self.seen(), {}

    def step(self, action: Any) -> Step:
        assert type(action) is int
        assert self.action_space.contains(action)
        self.count += 1
        if self.count == self.raise_at:
            raise RuntimeError(ON_PURPOSE)
        while self.block_file and os.path.exists(self.block_file):
            time.sleep(0.01)
        over = self.count >= self.length
        ending = self.ending or ("truncated", "terminated")[self.episodes % 2]
        reward = float(action - int(getattr(self.action_space, "start", 0)))
        return self.seen(), reward, over and ending == "terminated", over and ending == "truncated", {}


class Clock(Counter):
    """Counts in bytes, with three actions, and is terminated and truncated in turns."""

    LENGTH = 5
    observation_space, action_space = spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(3)

    def __init__(self) -> None:
        super().__init__(self.LENGTH, ending="")

    def seen(self) -> Any:
        return np.full(2, self.count, np.uint8)


class Endless(Env):
    """Pays 1 in every step; as a test would wait for ever, too many steps are an error."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Step:
        self.steps += 1
        if self.steps > 1000:
            raise RuntimeError("it is not cut off")
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Staged(Env):
    """Each episode takes one step; observations are its options."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        asked: Info = {"stage": [-1], "fixed": -1} | (options or {})
        self.seen = np.array([*asked["stage"], asked["fixed"]], np.float32)
        return self.seen, {}

    def step(self, action: Any) -> Step:
        return self.seen, 0.0, True, False, {}


class Walk(Env):
    """A random walk from `options["start"]`, of a random length, with infos of all kinds.

    The first copy that is reset with `options["exit_once"]`, a file, creates it and exits its process.
    """

    observation_space, action_space = spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        wanted = options or {}
        if not (file := Path(wanted.get("exit_once", "/"))).exists():
            file.touch()
            os._exit(3)
        self.at, self.count = float(wanted.get("start", 0)), 0
        self.length = int(self.np_random.integers(3, 9))
        return np.array([self.at], np.float32), {"length": self.length, "options": options is not None}

    def step(self, action: Any) -> Step:
        self.count += 1
        self.at += self.np_random.normal()
        info: Info = {"pair": np.array([self.at, self.count]), "nested": {"count": self.count, "text": "no"}}
        if self.count % 2:
            info["odd"] = np.float32(self.at)
        return np.array([self.at], np.float32), self.at, False, self.count >= self.length, info


class Parts(Env):
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

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self._seen(np.zeros(2, np.float32)), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        number, bits = action["pick"]
        drawn = int(self.np_random.integers(20))
        return self._seen(action["aim"]), float(number + bits.sum()), drawn == 0, drawn == 1, {"drawn": drawn}

    def _seen(self, done: Any) -> dict[str, Any]:
        draw = self.np_random.integers
        return {
            "bits": draw(2, size=3).astype(np.int8),
            "done": done,
            "image": draw(256, size=(4, 5)).astype(np.uint8),
            "pair": (np.int64(draw(3)) - 1, np.array([0, 7]) + draw(np.array([2, 5]))),
        }


def make_recorded_walk(**_: Any) -> Env:
    """A walk whose infos have the return and the length of each episode."""
    return RecordEpisodeStatistics(Walk())


gymnasium.register("Info-v0", make_recorded_walk)
