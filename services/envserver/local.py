"""Single environments that step in the env-server's own process, one after the other, without any isolation.

Breakpoints in environments work, and no messages are passed, but one that hangs or crashes takes the server with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numpy.typing import NDArray

from zerobeast.common.settings.run import EnvConfig
from zerobeast.common.wire.seeds import EnvSeeds
from zerobeast.services.envserver.making import make_env
from zerobeast.services.envserver.shard import Shard
from zerobeast.services.envserver.vector import EpisodeTracker, Only, VectorEnv


class LocalVectorEnv(VectorEnv):
    """N environments in this thread.

    Args:
      config: which environment.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      backend: as in `make_env`.
    """

    inline = True

    def __init__(self, config: EnvConfig, num_envs: int, seed: int, backend: str = "") -> None:
        super().__init__(num_envs)
        self._config, self._seed = config, seed
        self._make = partial(make_env, config.id, config.kwargs, backend)
        self._shard: Shard | None = None
        self._begun: Callable[[], None] | None = None
        self._only: Only = None  #: of the reset that was begun
        self._statistics = EpisodeTracker(num_envs)

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: Only = None) -> None:
        self._begun, self._only = partial(self._made.reset, seed, options, only), only

    def step(self, actions: NDArray[Any]) -> None:
        self._only, self._begun = None, partial(self._made.step, actions)

    def collect(self) -> bool:
        if self._shard is None:
            config = self._config
            self._shard = Shard(config.id, self._make, self.num_envs, self._seed, config.action_mask, (), self.infos)
            self.spec, self.rows = self._shard.spec, self._shard.rows
            return True
        if self._begun is None:
            return False
        begun, self._begun = self._begun, None
        try:
            begun()
        finally:
            failures, self._shard.failures = self._shard.failures, []
            self.count_failures(failures, self._config.id)
        self.episodes = self._statistics.note(self.rows, self._only)
        return True

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()

    @property
    def _made(self) -> Shard:
        assert self._shard is not None, "collect was True before"
        return self._shard
