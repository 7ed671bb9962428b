"""Zipf's Gridworld by id: `zipf/Gridworld` in its published size and `zipf/Gridworld-small` for runs of minutes, whose
maps and objects are drawn by Zipf's law, or uniformly (`-uniform`), or uniformly among the rarest (`-rare`).
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import EnvSeeds
from zerobeast.common.wire.seeds import list_seeds
from zerobeast.services.envserver.backend import Backend, VectorRequest, refuse_arguments, unknown_id_error
from zerobeast.services.envserver.gridworld import DIRECTIONS, Gridworlds, Picture, Size, views_of
from zerobeast.services.envserver.infos import extract_numbers
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.odds import LEVELS
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.services.envserver.vector import EnvMask

SIZES = {
    "zipf/Gridworld": Size(maps=20, rooms=3, objects=20, looks=15, limit=100, planes=False),
    "zipf/Gridworld-small": Size(maps=10, rooms=2, objects=10, looks=6, limit=50, planes=True),
}
EXPONENT = 2.0
ACTIONS = Discrete(len(DIRECTIONS))
#: by id: the same id without its level, and its level
TASKS = {base if level == "zipf" else f"{base}-{level}": (base, level) for base in SIZES for level in LEVELS}


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment. Raises EnvError: the id or an argument is unknown."""
    own = {name: value for name, value in kwargs.items() if name != "render_mode"}
    return GridworldEnv(_worlds(env_id, own, 1), kwargs.get("render_mode"))


def make_vec(request: VectorRequest) -> InlineVectorEnv | None:
    """Many of them in arrays, unless a mask of choices is asked for, which there is not."""
    if request.config.action_mask:
        return None
    return InlineVectorEnv(partial(ZipfEnvs, request.config), request.num_envs, request.seed, request.num_envs)


def _worlds(env_id: str, kwargs: Mapping[str, Any], num_envs: int) -> Gridworlds:
    if env_id not in TASKS:
        raise unknown_id_error(env_id, f"expected {', '.join(TASKS)}")
    refuse_arguments(kwargs, ["exponent"], env_id)
    exponent = kwargs.get("exponent", EXPONENT)
    if isinstance(exponent, bool) or not isinstance(exponent, int | float) or not 0 <= exponent < math.inf:
        raise EnvError(f"env.kwargs: exponent {exponent!r} of {env_id}, expected a number of at least 0")
    base, level = TASKS[env_id]
    return Gridworlds(SIZES[base], level, float(exponent), num_envs)


def observations(size: Size) -> Any:
    """The space of an agent's observations."""
    return Box(0, 1 if size.planes else 255, views_of(size).shape[3:], np.uint8)


class GridworldEnv(gymnasium.Env[Picture, np.int64]):
    """One agent as a single environment of gymnasium.

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


class ZipfEnvs(InlineEnvs):
    """N agents in arrays, each with a generator of its own.

    Args:
      config: which of the ids.
      num_envs: N.
      seed: agent i gets seed + i at its first reset.

    Raises:
      EnvError: the id or an argument is unknown.
    """

    takes_options = False

    def __init__(self, config: EnvConfig, num_envs: int, seed: int) -> None:
        self._worlds = _worlds(config.id, config.kwargs, num_envs)
        super().__init__(env_spec(config.id, observations(self._worlds.size), ACTIONS), num_envs)
        self._worlds.seed(range(seed, seed + num_envs))
        self._done = np.zeros(num_envs, np.bool_)

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        del options
        chosen = np.ones(self.num_envs, np.bool_) if only is None else only
        seeds = list_seeds(seed, self.num_envs)
        self._worlds.seed(each if is_chosen else None for each, is_chosen in zip(seeds, chosen, strict=True))
        self._worlds.begin(np.flatnonzero(chosen))
        self._done[chosen] = False
        self.infos = {}
        self.fill_first(self._worlds.observe(), chosen)

    def finish_step(self) -> None:
        first = self._done
        reward, terminated, truncated = self._worlds.step(self.actions)
        self._done = (terminated | truncated) & ~first
        self.infos = {}
        if self._done.any():
            outcome = self._worlds.outcome(reward)
            self.infos = {**outcome, **{f"_{name}": self._done for name in outcome}}
        self.episodes = self.statistics.update(reward & ~first, first, self._done, partial(extract_numbers, self.infos))
        self._worlds.begin(np.flatnonzero(first))
        self.fill(self._worlds.observe(), reward, terminated, truncated, first)

    def close(self) -> None:
        """Nothing to release."""


def levels(env_id: str) -> Mapping[str, str]:
    """The ids of the same size by how they are drawn."""
    own, _ = TASKS.get(env_id, ("", ""))
    return {level: name for name, (base, level) in TASKS.items() if base == own}


BACKEND = Backend(make, make_vec, ids=lambda: TASKS, levels=levels)
