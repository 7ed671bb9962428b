"""What a HELLO or a RESET to an env-server asks for."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.runtime.seeds import MAX_ENV_SEED
from zerobeast.common.settings.run import EnvConfig
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES

MAX_ENVS_PER_SESSION = 4096  #: so that the episodes which end in one step fit a header
MAX_ID_LENGTH = 200


class SessionRequest(NamedTuple):
    """The terms of one session."""

    env: EnvConfig
    num_envs: int
    seed: int  #: of the first environment; the others follow
    infos: bool  #: whether answers shall carry them

    @classmethod
    def read(cls, entries: dict[Any, Any]) -> SessionRequest:
        """Check what a peer asks for.

        Raises:
          RemoteProtocolError: it cannot be; the sentence names the entry.
        """
        num_envs = _integer(entries, "num_envs", 1, MAX_ENVS_PER_SESSION)
        seed = _integer(entries, "seed", 0, MAX_ENV_SEED)
        infos = entries.get("infos", False)
        if type(infos) is not bool:
            raise RemoteProtocolError(f"infos: expected a boolean, not {infos!r:.200}", "terms")
        wanted = entries.get("env")
        if isinstance(wanted, dict) and len(wanted) > len(EnvConfig.model_fields):  # pydantic would describe each
            raise RemoteProtocolError(
                f"env: {len(wanted)} entries, but only {len(EnvConfig.model_fields)} are known", "terms"
            )
        try:
            env = EnvConfig.model_validate(wanted)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(["env", *(str(part) for part in first["loc"])])
            raise RemoteProtocolError(f"{where}: {first['msg']}, not {first['input']!r:.200}", "terms") from error
        if len(env.id) > MAX_ID_LENGTH:
            raise RemoteProtocolError(f"env.id: {len(env.id)} characters, expected at most {MAX_ID_LENGTH}", "terms")
        return cls(env, num_envs, seed, infos)


class ResetRequest(NamedTuple):
    """What a RESET asks for."""

    seed: int | None  #: of the first environment; the others follow
    options: dict[str, Any] | None

    @classmethod
    def read(cls, body: tuple[Any, ...], env_id: str, *, takes_options: bool) -> ResetRequest:
        """Check what a peer asks for.

        Args:
          body: of the message.
          env_id: of the environments.
          takes_options: whether they do.

        Raises:
          RemoteProtocolError: it cannot be; the sentence names the entry.
        """
        seed, options = body
        if seed is not None:
            _integer({"seed": seed}, "seed", 0, MAX_ENV_SEED)
        if options is not None and not takes_options:
            raise RemoteProtocolError(f"options: environments {env_id!r} take none at a reset", "terms")
        if options is not None and (size := len(pack(options))) > MAX_OPTIONS_BYTES:
            raise RemoteProtocolError(f"options: {size} bytes, expected at most {MAX_OPTIONS_BYTES}", "terms")
        return cls(seed, options)


def _integer(entries: dict[Any, Any], name: str, low: int, high: int) -> int:
    value = entries.get(name)
    if type(value) is not int or not low <= value <= high:
        raise RemoteProtocolError(f"{name}: expected an integer from {low} to {high}, not {value!r:.200}", "terms")
    return value
