"""A blocking client of an env-server: the shortest way to step its environments, and the reference for others.

with EnvClient(context, "tcp://127.0.0.1:5550", {"id": "CartPole-v1"}, num_envs=8, seed=1) as envs:
    rows = envs.reset()                           # [N] of step_record(envs.spec)
    rows, episodes, infos = envs.step(actions)    # actions [N, *envs.spec.action.shape]
"""

from __future__ import annotations

import time
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import PeerLost
from zerobeast.common.runtime.seeds import EnvSeeds
from zerobeast.common.transport import Context, Poller
from zerobeast.env_session import EnvSession, Episodes, Infos


class EnvClient:
    """One session of N environments. Opens in the constructor.

    Args:
      context: of this process.
      endpoint: of the env-server.
      env: settings of the environment by the names of `EnvConfig`.
      num_envs: N.
      seed: environment i starts from seed + i.
      timeout_s: how long any answer may take.
      infos: ask for the numbers in what gymnasium calls infos; env-servers of protocol version 1 have none.
      reset_masks: ask for environments of which some can be reset while others play on.

    Attributes:
      spec: what one environment looks like.
      infos: of the newest answer, that of `reset` included; empty unless asked for.

    Raises:
      ConfigError: the server refuses, for instance because it does not know the environment.
      PeerLost: no answer in time, in any method, or the server lost the session.
      RemoteProtocolError: the server answers what cannot be.
    """

    def __init__(
        self,
        context: Context,
        endpoint: str,
        env: dict[str, Any],
        num_envs: int,
        seed: int,
        timeout_s: float = 60.0,
        *,
        infos: bool = False,
        reset_masks: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self.timeout_s = timeout_s
        terms = {"env": env, "num_envs": num_envs, "seed": seed}
        self._session = EnvSession(context, endpoint, terms | wishes(infos=infos, reset_masks=reset_masks))
        self._poller = Poller([self._session.port])
        try:
            self._wait()
        except BaseException:
            self._session.close()
            raise
        self.spec = self._session.spec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def infos(self) -> Infos:
        return self._session.infos

    def reset(
        self,
        seed: EnvSeeds = None,
        options: dict[str, Any] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[Any]:
        """Begin new episodes.

        Args:
          seed: environment i is seeded with seed + i from here on, or with entry i; None: its generator goes on.
          options: of the environments' own `reset`: values that msgpack has, 16 KiB of them at most.
          mask: [N] which environments; None: all. The rows of the others are repeated.

        Returns:
          Their first rows, [N] of `step_record`, a new array.

        Raises:
          ConfigError: a seed that cannot be, too many options, or environments or an env-server that take none, or
            that can only be reset together.
          LocalProtocolError: the options hold what cannot travel.
        """
        self.begin_reset(seed, options, mask)
        return self.finish()[0]

    def step(self, actions: Any) -> tuple[NDArray[Any], Episodes, Infos]:
        """Step with actions [N, *action shape], a map of such if they have parts.

        Returns:
          rows: [N] of `step_record`, a new array.
          episodes: (return, length in agent steps) of the whole, unclipped episodes that ended.
          infos: as `infos`.

        Raises:
          ConfigError: actions of another shape or kind, or out of their range.
        """
        self.begin_step(actions)
        return self.finish()

    def begin_reset(
        self,
        seed: EnvSeeds = None,
        options: dict[str, Any] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """The first half of `reset`, which does not wait."""
        self._session.begin_reset(seed, options, mask)
        self._session.advance()

    def begin_step(self, actions: Any) -> None:
        """The first half of `step`, which does not wait."""
        self._session.begin_step(actions)
        self._session.advance()

    def finish(self) -> tuple[NDArray[Any], Episodes, Infos]:
        """The second half of `step` or `reset`: what `step` returns."""
        self._wait()
        return self._session.rows, self._session.episodes, self._session.infos

    def close(self) -> None:
        """Say goodbye; the server closes the environments."""
        self._session.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + self.timeout_s
        while not self._session.advance():
            left_s = deadline - time.monotonic()
            if left_s < 0:
                raise PeerLost(self._session.complaint(self.timeout_s))
            self._poller.wait(min(self._session.pause_s(), left_s))


def wishes(*, infos: bool, reset_masks: bool) -> dict[str, bool]:
    """Terms of HELLO that are named only where they are wanted: not every env-server knows them."""
    return {name: True for name, wanted in (("infos", infos), ("reset_masks", reset_masks)) if wanted}
