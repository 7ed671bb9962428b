"""Environments that are made in this thread, a part at a time: while one is made, no other session can step.

A thread would not help: ale-py (0.12.1) holds Python's lock for all of an emulator's making.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from zerobeast.services.envserver.vector import VectorEnv, rows_for


class IncrementalVectorEnv(VectorEnv):
    """N environments as one or more vector environments, stepped side by side.

    Each `collect` makes a part, or resets one for the first time: seeding an emulator takes as long as making it.

    Args:
      make: a vector environment of n copies, seeded from a number on, that finishes what it begins without waiting.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      most: environments of a part.
    """

    inline = True

    def __init__(self, make: Callable[[int, int], VectorEnv], num_envs: int, seed: int, most: int) -> None:
        super().__init__(num_envs)
        self._make, self._seed, self._most = make, seed, most
        self._parts: list[tuple[slice, VectorEnv]] = []
        self._made = 0  #: environments that exist and were reset
        self._was_reset = self._begun = False

    def reset(self) -> None:
        """See the base class."""
        self._begun = True
        for _, env in self._parts if self._was_reset else ():
            env.reset()
        self._was_reset = True

    def step(self, actions: NDArray[Any]) -> None:
        """See the base class."""
        self._begun = True
        for part, env in self._parts:
            env.step(actions[part])

    def collect(self) -> bool:
        """See the base class."""
        if self._made < self.num_envs:
            self._make_or_reset_next()
            return self._made == self.num_envs
        begun, self._begun = self._begun, False
        for _, env in self._parts if begun else ():
            env.collect()
        self.episodes = list(chain.from_iterable(env.episodes for _, env in self._parts))
        return begun

    def close(self) -> None:
        """See the base class."""
        for _, env in self._parts:
            env.close()

    def _make_or_reset_next(self) -> None:
        """Reset the newest part, or make the next."""
        if self._parts and self._parts[-1][0].stop > self._made:
            part, env = self._parts[-1]
            env.reset()
            env.collect()
            self._made = part.stop
            return
        part = slice(self._made, min(self._made + self._most, self.num_envs))
        env = self._make(part.stop - part.start, self._seed + part.start)
        env.collect()
        if not self._parts:
            self.spec, self.rows = env.spec, rows_for(env.spec, self.num_envs)
        env.rows = self.rows[part]
        self._parts.append((part, env))
