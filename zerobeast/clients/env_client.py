"""A blocking client of an env-server: the shortest way to step its environments, and the reference for other clients.

with EnvClient(context, "tcp://127.0.0.1:5550", {"id": "CartPole-v1"}, num_envs=8, seed=1) as envs:
    rows = envs.reset()                           # [N] of step_record(envs.spec, packed=False)
    rows, episodes, infos = envs.step(actions)    # actions [N, *envs.spec.action.shape]
"""

import logging
import math
import time
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_session import EnvAnswer, EnvSession, Episodes, Infos, Mask
from zerobeast.common.errors import PeerLost
from zerobeast.common.transport import Context, Poller
from zerobeast.common.wire import EnvSeeds
from zerobeast.common.wire.messages import Frames, Kind

log = logging.getLogger(__name__)

QUIET_S = 5.0  #: a server that is silent for longer is reported, while the client goes on waiting


class EnvClient(EnvSession, AbstractContextManager["EnvClient"]):
    """One session of N environments, opened by the constructor.

    Args:
      context: the context of this process.
      endpoint: the endpoint of the env-server.
      env: settings of the environment, named as in `EnvConfig`.
      num_envs: N.
      seed: environment i is seeded with seed + i.
      timeout_s: how long the server may be silent, and how long any answer may take for each environment.
      infos: request the numeric entries of gymnasium's infos.
      reset_masks: request environments of which some can be reset while the others go on.

    Attributes:
      spec: what one environment looks like.
      infos: the infos of the newest answer, including that of `reset`; empty unless requested.

    Raises:
      ConfigError: the server refuses, for instance because it does not have the environment.
      PeerLost: no answer in time (in any method), or the server lost the session.
      RemoteProtocolError: the server sent an invalid answer.

    Examples:
      An env-server runs on this machine: `python -m zerobeast.services.envserver`.

      >>> import numpy as np
      >>> import zerobeast as zb
      >>> settings = {"id": "CartPole-v1"}
      >>> with zb.Context() as context:
      ...     with zb.EnvClient(context, "tcp://127.0.0.1:5550", settings, num_envs=8, seed=1) as envs:
      ...         rows = envs.reset()
      ...         rows, episodes, infos = envs.step(np.zeros(8, np.int64))
      >>> rows["obs"].shape, rows["reward"].shape
      ((8, 4), (8,))
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
        self.timeout_s = timeout_s
        terms = {"env": env, "num_envs": num_envs, "seed": seed, "infos": infos, "reset_masks": reset_masks}
        super().__init__(context, endpoint, terms)
        self._poller = Poller([self.port])
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_error: object) -> None:
        self.close()

    def reset(
        self,
        seed: EnvSeeds = None,
        options: dict[str, Any] | None = None,
        mask: Mask | None = None,
    ) -> NDArray[Any]:
        """Begin new episodes.

        Args:
          seed: environment i is reseeded with seed + i, or with entry i of a list; None: its generator goes on.
          options: options of the environments' own `reset`: msgpack values, at most 16 KiB when packed.
          mask: [N] which environments to reset; None: all. The rows of the others are repeated.

        Returns:
          Their first rows, [N] of `step_record`, not packed, in a new array.

        Raises:
          ConfigError: the seed is invalid, the options are too large, or the environments or the env-server do not
            support what was requested: a seed, options or a mask.
          LocalProtocolError: the options hold a value that cannot be packed.
        """
        self.begin_reset(seed, options, mask)
        return self.finish().rows

    def step(self, actions: Any) -> tuple[NDArray[Any], Episodes, Infos]:
        """Step with actions [N, *action shape], or a map of such arrays if the action space has several parts.

        Returns:
          rows: [N] of `step_record`, not packed, in a new array.
          episodes: (unclipped return, length in agent steps) of the whole episodes that ended.
          infos: the same as the attribute `infos`.

        Raises:
          ConfigError: the actions have the wrong shape or kind, or are out of range.
        """
        self.begin_step(actions)
        answer = self.finish()
        return answer.rows, answer.episodes, answer.infos

    def finish(self) -> EnvAnswer:
        """Wait for the answer to what was begun."""
        self._wait()
        return EnvAnswer(self.rows, self.infos, self.episodes, np.zeros(self.num_envs, np.bool_))

    def _request(self, kind: Kind, body: tuple[Any, ...], frames: Frames) -> None:
        super()._request(kind, body, frames)
        self.advance()

    def _wait(self) -> None:
        began, quiet_s = time.monotonic(), QUIET_S
        while not self.advance():
            limit_s = self.timeout_s * (max(1, self.num_envs) if self.works(self.timeout_s) else 1)
            left_s = began + limit_s - time.monotonic()
            if limit_s - left_s > quiet_s and not self.works(quiet_s):
                log.warning("%s; it may take %g s in all (timeout_s)", self.complaint(quiet_s), limit_s)
                quiet_s = math.inf
            if left_s < 0:
                raise PeerLost(f"{self.complaint(limit_s)}: timeout_s is {self.timeout_s:g}")
            self._poller.wait(min(self.pause_s(), left_s))
