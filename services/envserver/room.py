"""Whether another session can be opened now. Environments are somebody's memory, processes and seconds of start-up."""

from __future__ import annotations

from collections.abc import Sequence

from common.config.tree import EnvServerConfig
from common.errors import RemoteProtocolError
from services.envserver.vector import VectorEnv

MAX_SESSIONS = 1024
MAX_IN_THE_MAKING = 8  #: sessions whose environments are not there yet


def find_room(
    num_envs: int,
    settings: EnvServerConfig,
    *,
    hosted: Sequence[VectorEnv],
    making: Sequence[VectorEnv],
    leaving: Sequence[VectorEnv],
) -> None:
    """Judge a new session.

    Args:
      num_envs: that it asks for.
      settings: the limits.
      hosted: of all sessions.
      making: those of them that are not there yet.
      leaving: of closed sessions, that have not ended yet.

    Raises:
      RemoteProtocolError: they would be too many now.
    """
    envs = sum(env.num_envs for env in hosted)
    processes = sum(env.processes for env in [*hosted, *leaving])
    full = len(hosted) >= MAX_SESSIONS or envs + num_envs > settings.max_envs or processes >= settings.max_workers
    # Processes make environments side by side; what has none is made in the server's own loop, one after the other.
    if full or len(making) >= MAX_IN_THE_MAKING or not all(env.processes for env in making):
        raise RemoteProtocolError(
            f"no room for {num_envs} environments now: the env-server hosts {envs} in {len(hosted)} sessions "
            f"({len(making)} of them in the making) and has {processes} processes",
            "busy",
        )
