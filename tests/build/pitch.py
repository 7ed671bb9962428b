"""A stand-in for the package gfootball, which is built from source: its first player runs straight on and shoots."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from zerobeast.services.envserver.gfootball import CONTROL_ARGUMENT

RUN, SHOT = 5, 12


class Pitch:
    """What `create_environment` returns: four runs are one of ten checkpoints, and each shot is a goal and the end."""

    _num_actions = 19

    def __init__(self, _scenario: str, *, representation: str, rewards: str, **options: Any) -> None:
        self.unwrapped, self._config = self, dict[str, Any]()
        self._pays = "checkpoints" in rewards
        self._sides = np.repeat([1, -1], [options[CONTROL_ARGUMENT.format(team)] for team in ("left", "right")])
        shape = (115,) if representation == "simple115v2" else (72, 96, 16)
        self.observation_space = Box(-np.inf, np.inf, (*self._sides.shape, *shape))

    def reset(self) -> NDArray[Any]:
        self._runs, self._passed, self._goal = 0, 0, False
        return self._seen()

    def step(self, actions: list[int]) -> tuple[Any, ...]:
        self._goal, self._runs = actions[0] == SHOT, self._runs + (actions[0] == RUN)
        before, self._passed = self._passed, 10 if self._goal else self._runs // 4
        rewards = self._goal * self._sides + (self._sides > 0) * self._pays * (self._passed - before) / 10
        return self._seen(), rewards, self._goal, {}

    def observation(self) -> list[dict[str, Any]]:
        return [{"steps_left": 9, "score": [int(self._goal), 0][::side]} for side in self._sides.tolist()]

    def close(self) -> None: ...

    def _seen(self) -> NDArray[Any]:
        """A point of each plane at one place, or numbers that are those of the other side turned around."""
        seen = np.zeros(self.observation_space.shape)
        seen.reshape(len(self._sides), -1)[:, :100] = self._sides[:, None] * (1 + self._runs)
        return seen


def modules() -> dict[str, ModuleType]:
    """The modules of the package by their names; a scenario has two players on the left and one on the right."""
    found = {name: ModuleType(name) for name in ("gfootball", "gfootball.env", "gfootball.env.config")}
    vars(found["gfootball.env"])["create_environment"] = Pitch
    scene = SimpleNamespace(controllable_left_players=2, controllable_right_players=1)
    vars(found["gfootball.env.config"])["Config"] = lambda _level: SimpleNamespace(ScenarioConfig=lambda: scene)
    return found
