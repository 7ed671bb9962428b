"""One gymnasium vector environment over many env-servers; it goes on when some of them are gone.

envs = ClusterVectorEnv(["tcp://a:5550", "tcp://b:5550"], "CartPole-v1", num_envs=64)
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from gymnasium.vector import AutoresetMode

from zerobeast.clients.env_client import wishes
from zerobeast.clients.remote.fleet import ClusterFleet, OnLoss
from zerobeast.clients.remote.vector_env import RowsVectorEnv, mode_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import Context
from zerobeast.common.wire.description import short
from zerobeast.common.wire.seeds import MAX_ENV_SEED


class ClusterVectorEnv(RowsVectorEnv):
    """N environments spread evenly over env-servers that step in parallel.

    An env-server that is killed, stopped or cut off costs one step of `step_timeout_s`. Its environments are then lost:
    see `RowsVectorEnv`. They repeat their last observation with reward 0 until they are made anew and a new episode
    begins, as after any other end of an episode. No method waits longer than the time that it was
    given, but a step in SAME_STEP mode that ends episodes makes two requests and may take twice `step_timeout_s`.

    Args:
      endpoints: the endpoints of the env-servers; each hosts a slice of the environments.
      env_id, num_envs, env, autoreset_mode, context: as in `RemoteVectorEnv`.
      on_loss: where lost environments are made anew. "mask": at their own env-server, when it is back; until then the
        others go on without them. "remake": at any env-server that answers, first at the one with the fewest
        environments.
      step_timeout_s: how long a step may take.
      timeout_s: how long opening the sessions or a reset of all environments may take, and how long all of them may be
        lost before PeerLost is raised.

    Raises:
      ConfigError: an env-server refuses, or two of them have different environments.
      PeerLost: at the start, an env-server does not answer in time; later, none of them does.
    """

    def __init__(  # noqa: PLR0913 - a constructor for users, who name what they mean
        self,
        endpoints: Sequence[str],
        env_id: str,
        num_envs: int,
        *,
        env: Mapping[str, Any] | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        on_loss: OnLoss = "mask",
        step_timeout_s: float = 10.0,
        timeout_s: float = 60.0,
        context: Context | None = None,
    ) -> None:
        mode = mode_of(autoreset_mode)
        if isinstance(endpoints, str) or not 0 < len(endpoints) <= num_envs:
            raise ConfigError(
                f"endpoints are {short(endpoints)}, expected a list of 1 to {num_envs}, as many as num_envs"
            )
        if on_loss not in get_args(OnLoss):
            raise ConfigError(f"on_loss is {short(on_loss)}, expected {' or '.join(get_args(OnLoss))}")
        terms = {"env": {**(env or {}), "id": env_id}, "num_envs": num_envs, "seed": secrets.randbelow(MAX_ENV_SEED)}
        terms |= wishes(infos=True, reset_masks=mode is not AutoresetMode.NEXT_STEP)
        with contextlib.ExitStack() as stack:
            context = context or stack.enter_context(Context())
            limits = {"step_timeout_s": step_timeout_s, "timeout_s": timeout_s}
            fleet = ClusterFleet(context, endpoints, terms, on_loss=on_loss, **limits)
            stack.callback(fleet.close)
            super().__init__(fleet, env_id, num_envs, mode)
            self._resources = stack.pop_all()
