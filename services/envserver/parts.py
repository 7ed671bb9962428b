"""Many environments of a kind that is slow to make and has to be made in this thread: some in each turn of the loop.

An emulator takes a sixth of a second, during which nobody else's environments step. A HELLO may ask for thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from services.envserver.vector import VectorEnv, rows_for


class PartsVectorEnv(VectorEnv):
    """N environments as several vector environments, stepped one after the other.

    Args:
      make: a vector environment of n copies, seeded from a number on, that finishes what it begins without waiting.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      most: environments of a part.
    """

    def __init__(self, make: Callable[[int, int], VectorEnv], num_envs: int, seed: int, most: int) -> None:
        super().__init__(num_envs)
        self._make, self._seed, self._most = make, seed, most
        self._parts: list[tuple[slice, VectorEnv]] = []
        self._made, self._begun = 0, False

    def reset(self) -> None:
        """See the base class."""
        self._begun = True
        for _, env in self._parts:
            env.reset()

    def step(self, actions: NDArray[Any]) -> None:
        """See the base class."""
        self._begun = True
        for part, env in self._parts:
            env.step(actions[part])

    def collect(self) -> bool:
        """See the base class."""
        if self._made < self.num_envs:
            self._add()
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

    def _add(self) -> None:
        part = slice(self._made, min(self._made + self._most, self.num_envs))
        env = self._make(part.stop - part.start, self._seed + part.start)
        env.collect()
        if not self._parts:
            self.spec, self.rows = env.spec, rows_for(env.spec, self.num_envs)
        env.rows = self.rows[part]
        self._parts.append((part, env))
        self._made = part.stop
