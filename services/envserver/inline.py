"""Environments that this thread makes, a part at a time, and steps: no other session steps while a part is made.

A second thread would not help: ale-py (0.12.1) holds Python's global interpreter lock while it makes an emulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.common.wire.checks import illegal
from zerobeast.common.wire.seeds import EnvSeeds, of_part
from zerobeast.common.wire.spaces import by_array
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.envserver.vector import Episodes, EpisodeTracker, Only, VectorEnv, contained, rows_for


class InlineEnvs(ABC):
    """Base class of N environments that step inside this process, in code that never waits for a peer."""

    takes_options: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        self.rows = rows_for(spec, num_envs)
        self.episodes: Episodes = []
        self.infos: dict[str, Any] = {}  #: of the newest answer, in the library's form
        self.statistics = EpisodeTracker(num_envs)

    @abstractmethod
    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: Only = None) -> None:
        """Begin new episodes and fill their first rows; as `VectorEnv.reset`."""

    @abstractmethod
    def begin_step(self, actions: NDArray[Any]) -> None:
        """Hand over the actions."""

    @abstractmethod
    def finish_step(self) -> None:
        """Fill rows and episodes."""

    @abstractmethod
    def close(self) -> None:
        """Release the environments."""

    def fill_first(self, obs: Any, only: Only = None) -> None:
        """Write first rows of episodes, for the environments in `only` or all; obs [N, ...] is of all."""
        chosen = np.ones(self.num_envs, np.bool_) if only is None else only
        self.statistics.forget(chosen)
        self.episodes = []
        kept = self.rows[~chosen]
        no = np.zeros(self.num_envs, np.bool_)
        self.fill(obs, np.zeros(self.num_envs), no, no, first=chosen)
        self.rows[~chosen] = kept

    def fill(
        self,
        obs: Any,
        reward: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        first: NDArray[Any],
    ) -> None:
        """Write rows. All arguments are [N, ...], obs nested as its space; first rows get no reward and no end."""
        rows = self.rows
        self._check("a reward", reward, rows["reward"].shape)
        columns = by_array(self.spec.obs, rows["obs"])
        for (_, column), (_, values) in zip(columns, by_array(self.spec.obs, obs), strict=True):
            self._check("an observation", values, column.shape)
            column[...] = values
        if sentence := illegal(f"environment {self.spec.env_id!r}: an observation", rows["obs"], self.spec.obs):
            raise EnvError(f"{sentence}, counted from 0")
        rows["first"] = first
        rows["reward"] = np.where(first, 0, reward)
        rows["terminated"] = terminated & ~first
        rows["truncated"] = truncated & ~first

    def _check(self, what: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
        """Refuse values that are not finite, and wrong shapes, which numpy would silently broadcast."""
        if values.shape != shape:
            raise EnvError(f"environment {self.spec.env_id!r}: {what} has shape {values.shape}, expected {shape}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise EnvError(f"environment {self.spec.env_id!r}: {what} is not finite")


class InlineVectorEnv(VectorEnv):
    """N environments in one or more parts, stepped side by side.

    Each `collect` makes a part, or resets one with a seed: seeding an emulator takes as long as making it.

    Args:
      make: makes n environments, given n and the seed of the first.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      most: environments of a part at most.
    """

    inline = True

    def __init__(self, make: Callable[[int, int], InlineEnvs], num_envs: int, seed: int, most: int) -> None:
        super().__init__(num_envs)
        self._make, self._seed, self._most = make, seed, most
        self._parts: list[tuple[slice, InlineEnvs]] = []
        self._made = 0  #: environments that exist and were reset
        self._was_reset = False
        self._begun: list[Callable[[], None]] | None = None  #: the calls that finish it
        self._at_once = True  #: whether one `collect` makes all these calls, or each makes one

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: Only = None) -> None:
        is_first, self._was_reset = not self._was_reset, True
        if is_first and options is not None and seed is None:
            seed = self._seed
        self._at_once, self._begun = seed is None, []
        if not is_first or seed is not None:  # otherwise making the parts has done the first reset
            for part, env in self._parts:
                if only is not None and not only[part].any():
                    env.episodes, env.infos = [], {}
                    continue
                part_only = None if only is None else only[part]
                self._begun.append(partial(env.reset, of_part(seed, part), options, part_only))

    def step(self, actions: NDArray[Any]) -> None:
        with contained(f"environment {self.spec.env_id!r} cannot take a step"):
            for part, env in self._parts:
                env.begin_step(actions[part])
        self._at_once, self._begun = True, [env.finish_step for _, env in self._parts]

    def collect(self) -> bool:
        if self._made < self.num_envs:
            self._make_or_reset_next()
            return self._made == self.num_envs
        if self._begun is None:
            return False
        calls = self._begun if self._at_once else self._begun[:1]
        self._finish(*calls)
        self._begun = self._begun[len(calls) :]
        if self._begun:
            return False
        self._begun = None
        if self.infos is not None:
            self.infos.clear()
            for part, env in self._parts:
                self.infos.put(env.infos, part)
        self.episodes = list(chain.from_iterable(env.episodes for _, env in self._parts))
        return True

    def close(self) -> None:
        for _, env in self._parts:
            with suppress(Exception):  # foreign code, and nothing depends on it
                env.close()

    def _make_or_reset_next(self) -> None:
        """Reset the newest part, or make the next."""
        if self._parts and self._parts[-1][0].stop > self._made:
            part, env = self._parts[-1]
            self._finish(env.reset)
            self._made = part.stop
            return
        part = slice(self._made, min(self._made + self._most, self.num_envs))
        env = self._make(part.stop - part.start, self._seed + part.start)
        if not self._parts:
            self.spec, self.rows = env.spec, rows_for(env.spec, self.num_envs)
            self.takes_options, self.independent = env.takes_options, env.independent
        env.rows = self.rows[part]
        self._parts.append((part, env))

    def _finish(self, *calls: Callable[[], None]) -> None:
        with contained(f"environment {self.spec.env_id!r} has failed"):
            for call in calls:
                call()
