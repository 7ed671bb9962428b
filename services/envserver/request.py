"""What a HELLO to an env-server asks for."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.runtime.seeds import MAX_ENV_SEED
from zerobeast.common.settings.run import EnvConfig

MAX_ENVS_PER_SESSION = 4096  #: so that the episodes which end in one step fit a header
MAX_ID_LENGTH = 200


class SessionRequest(NamedTuple):
    """The terms of one session."""

    env: EnvConfig
    num_envs: int
    seed: int  #: of the first environment; the others follow

    @classmethod
    def read(cls, entries: dict[Any, Any]) -> SessionRequest:
        """Check what a peer asks for.

        Raises:
          RemoteProtocolError: it cannot be; the sentence names the entry.
        """
        num_envs = _integer(entries, "num_envs", 1, MAX_ENVS_PER_SESSION)
        seed = _integer(entries, "seed", 0, MAX_ENV_SEED)
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
        return cls(env, num_envs, seed)


def _integer(entries: dict[Any, Any], name: str, low: int, high: int) -> int:
    value = entries.get(name)
    if type(value) is not int or not low <= value <= high:
        raise RemoteProtocolError(f"{name}: expected an integer from {low} to {high}, not {value!r:.200}", "terms")
    return value
