"""What each session of an env-server hosts, whether there is room for another, and which a turn of its loop serves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings import EnvServerConfig
from zerobeast.common.wire.messages import Header
from zerobeast.common.wire.session import Session
from zerobeast.services.envserver.vector import VectorEnv

MAX_SESSIONS = 1024
MAX_IN_THE_MAKING = 8  #: sessions whose processes are started side by side


@dataclass
class Hosted:
    env: VectorEnv
    request: Header | None  #: being worked on; the HELLO at first
    actions: NDArray[Any] | None = None  #: [N] of `action_record`, the buffer that receives STEP
    env_id: str = ""

    @property
    def has_inline_work(self) -> bool:
        """Whether the next turn has work here that no file announces."""
        return self.request is not None and self.env.inline


def check_capacity(
    num_envs: int, settings: EnvServerConfig, *, hosted: Sequence[VectorEnv], leaving: Sequence[VectorEnv]
) -> None:
    """Check that there is room for a new session.

    Args:
      num_envs: environments that it asks for, whatever the number of their agents.
      settings: the limits.
      hosted: environments of all sessions, including those still to be made.
      leaving: environments of closed sessions that have not ended yet.

    Raises:
      RemoteProtocolError: there is no room now.
    """
    envs = sum(env.num_envs // env.agents for env in hosted)
    processes = sum(env.processes for env in [*hosted, *leaving])
    if len(hosted) >= MAX_SESSIONS or envs + num_envs > settings.max_envs or processes >= settings.max_workers:
        raise RemoteProtocolError(
            f"no room for {num_envs} environments now: the env-server hosts {envs} in {len(hosted)} sessions "
            f"and has {processes} processes",
            "busy",
        )


def sessions_to_advance(sessions: Iterable[Session[Hosted]], *, make: bool = True) -> list[Session[Hosted]]:
    """The sessions that a turn serves: all whose environments exist, then a few others in order of arrival.

    Processes make environments side by side, for a few sessions at a time. The server's own thread makes those of one
    session at a time: the first can be stepped while the others still wait.

    Args:
      sessions: all of the server.
      make: whether this turn makes environments in the server's own thread.
    """
    sessions = list(sessions)
    if all(session.welcome is not None for session in sessions):
        return sessions
    queue = sorted((session for session in sessions if session.welcome is None), key=lambda session: session.opened_at)
    apart = [session for session in queue if not session.state.env.inline]
    inline = [session for session in queue if session.state.env.inline]
    made = [session for session in sessions if session.welcome is not None]
    return [*made, *apart[:MAX_IN_THE_MAKING], *inline[: 1 if make else 0]]
