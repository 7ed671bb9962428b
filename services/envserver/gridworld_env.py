"""Zipf's Gridworld as a single environment of gymnasium: one agent of `gridworld.Gridworlds`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from zerobeast.services.envserver.gridworld import DIRECTIONS, Gridworlds, Picture, Size, views_of

ACTIONS = Discrete(len(DIRECTIONS))


def observations(size: Size) -> Any:
    """The space of what an agent sees."""
    return Box(0, 1 if size.planes else 255, views_of(size).shape[3:], np.uint8)


class GridworldEnv(gymnasium.Env[Picture, np.int64]):
    """One agent.

    Args:
      worlds: of one agent.
      render_mode: "rgb_array", or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  # gymnasium's declaration

    def __init__(self, worlds: Gridworlds, render_mode: str | None = None) -> None:
        self.worlds, self.render_mode = worlds, render_mode
        self.observation_space, self.action_space = observations(worlds.size), ACTIONS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        del options
        self.worlds.seed([seed])
        self.worlds.begin(np.zeros(1, np.int64))
        return self.worlds.observe()[0], {}

    def step(self, action: np.int64) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self.worlds.step(np.array([action]))
        ends = bool(terminated[0] | truncated[0])
        info = {name: values[0] for name, values in self.worlds.outcome(reward).items()} if ends else {}
        return self.worlds.observe()[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Picture:
        return self.worlds.picture(0)

    def get_action_meanings(self) -> list[str]:
        return list(DIRECTIONS)
