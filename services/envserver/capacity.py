"""Whether the env-server can host another session: environments cost memory and processes."""

from __future__ import annotations

from collections.abc import Sequence

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.run import EnvServerConfig
from zerobeast.services.envserver.vector import VectorEnv

MAX_SESSIONS = 1024


def check_capacity(
    num_envs: int, settings: EnvServerConfig, *, hosted: Sequence[VectorEnv], leaving: Sequence[VectorEnv]
) -> None:
    """Check that there is room for a new session.

    Args:
      num_envs: environments that it asks for.
      settings: the limits.
      hosted: environments of all sessions, including those still to be made.
      leaving: environments of closed sessions that have not ended yet.

    Raises:
      RemoteProtocolError: there is no room now.
    """
    envs = sum(env.num_envs for env in hosted)
    processes = sum(env.processes for env in [*hosted, *leaving])
    if len(hosted) >= MAX_SESSIONS or envs + num_envs > settings.max_envs or processes >= settings.max_workers:
        raise RemoteProtocolError(
            f"no room for {num_envs} environments now: the env-server hosts {envs} in {len(hosted)} sessions "
            f"and has {processes} processes",
            "busy",
        )
