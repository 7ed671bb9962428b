"""What clients ask of an env-server, validated; what each session hosts, whether there is room for another, and which a
turn of the server's loop serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictBool, StrictInt, ValidationError

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES, Header
from zerobeast.common.wire.session import Session
from zerobeast.services.envserver.vector import VectorEnv

MAX_ENVS_PER_SESSION = 4096  #: so that the episodes that end in one step fit a header
MAX_SESSIONS = 1024
MAX_SETTINGS = 100  #: of the environments of a session
TERMS = partial(RemoteProtocolError, reason="terms")
MAX_IN_THE_MAKING = 8  #: sessions whose processes are started side by side
RESET_MASKS_HINT = (
    "unless HELLO asks for reset_masks, as Python's vector environments do in every autoreset_mode but next_step"
)


class SessionRequest(BaseModel):
    """The terms of one session."""

    env: EnvConfig
    num_envs: StrictInt = Field(ge=1, le=MAX_ENVS_PER_SESSION)  #: a multiple of `env.agents`, which it counts
    seed: StrictInt = Field(ge=0, le=MAX_ENV_SEED)  #: of the first environment; the others follow
    infos: StrictBool = False  #: whether answers carry them
    reset_masks: StrictBool = False  #: whether some environments may be reset while others play on

    @classmethod
    def read(cls, entries: dict[Any, Any]) -> SessionRequest:
        """Read and check the entries of a HELLO; others are ignored.

        Raises:
          RemoteProtocolError: an entry is invalid; the error names it.
        """
        wanted = entries.get("env")
        if isinstance(wanted, dict) and len(wanted) > MAX_SETTINGS:  # pydantic would list each
            raise TERMS(f"env: {len(wanted)} entries, expected at most {MAX_SETTINGS}")
        try:
            terms = cls.model_validate(entries)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                raise TERMS(
                    f"{where}: no setting of this environment, for which a package may be missing here"
                ) from error
            raise TERMS(f"{where}: {first['msg']}, not {first['input']!r:.200}") from error
        env = terms.env.model_copy(update={"agents": terms.env.agents or 1})
        if terms.num_envs % env.agents:
            raise TERMS(f"num_envs: {terms.num_envs}, expected a multiple of env.agents {env.agents}, which it counts")
        if terms.reset_masks and env.agents > 1:
            why = f"because all {env.agents} agents are reset together: choose autoreset_mode next_step"
            raise TERMS(f"reset_masks: true, expected false, {why}")
        return terms.model_copy(update={"env": env})


class ResetRequest(NamedTuple):
    """What a RESET asks for."""

    seed: EnvSeeds
    options: dict[str, Any] | None
    only: NDArray[np.bool_] | None  #: [N] which environments; None: all

    @classmethod
    def read(cls, body: tuple[Any, ...], env: VectorEnv) -> ResetRequest:
        """Read and check the body of a RESET.

        Args:
          body: of the message.
          env: the environments to reset.

        Raises:
          RemoteProtocolError: an entry is invalid; the error names it.
        """
        seed, options, mask, _progress = body
        env_id, is_list = env.spec.env_id, isinstance(seed, list)
        if is_list and len(seed) != env.num_envs:
            raise TERMS(f"seed: a list of {len(seed)}, expected one for each of {env.num_envs}")
        seeds = {f"seed[{i}]": each for i, each in enumerate(seed)} if is_list else {"seed": seed}
        for name, each in seeds.items():
            if each is not None and (type(each) is not int or not 0 <= each <= MAX_ENV_SEED):
                raise TERMS(f"{name}: expected an integer from 0 to {MAX_ENV_SEED}, not {each!r:.200}")
        if mask is not None and (len(mask) != env.num_envs or {*map(type, mask)} != {bool} or not any(mask)):
            raise TERMS(f"mask: {mask!r:.200}, expected {env.num_envs} booleans of which one at least is true")
        if not env.independent and (is_list or mask is not None):
            what = f"{'seed' if mask is None else 'mask'}: environments {env_id!r} are seeded and reset all together"
            raise TERMS(f"{what}, {RESET_MASKS_HINT}" if env.agents == 1 else what)
        if options is not None and not env.takes_options:
            raise TERMS(f"options: environments {env_id!r} take none at a reset")
        if options is not None and (size := len(pack(options))) > MAX_OPTIONS_BYTES:
            raise TERMS(f"options: {size} bytes, expected at most {MAX_OPTIONS_BYTES}")
        return cls(seed, options, None if mask is None else np.array(mask))


@dataclass
class HostedEnvs:
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
        has = f"the env-server hosts {envs} in {len(hosted)} sessions and has {processes} processes"
        raise RemoteProtocolError(f"no room for {num_envs} environments now: {has}", "busy")


def sessions_to_advance(sessions: Iterable[Session[HostedEnvs]], *, make: bool = True) -> list[Session[HostedEnvs]]:
    """The sessions that a turn serves: all whose environments exist, then a few others in order of arrival.

    Processes make environments side by side, for a few sessions at a time. The server's own thread makes those of one
    session at a time: the first can be stepped while the others still wait.

    Args:
      sessions: all of the server.
      make: whether this turn makes environments in the server's own thread.
    """
    sessions = list(sessions)
    queue = sorted((session for session in sessions if session.welcome is None), key=lambda session: session.opened_at)
    apart = [session for session in queue if not session.state.env.inline]
    inline = [session for session in queue if session.state.env.inline]
    made = [session for session in sessions if session.welcome is not None]
    return [*made, *apart[:MAX_IN_THE_MAKING], *inline[: 1 if make else 0]]
