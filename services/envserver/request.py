"""The contents of a HELLO or a RESET to an env-server, validated."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES
from zerobeast.services.envserver.vector import VectorEnv

MAX_ENVS_PER_SESSION = 4096  #: so that the episodes that end in one step fit a header
MAX_ID_LENGTH = 1000  #: a path of a file may be long, and a sentence on the wire has twice as many
UNLESS = "unless HELLO asks for reset_masks, as Python's vector environments do in every autoreset_mode but next_step"


class SessionRequest(NamedTuple):
    """The terms of one session."""

    env: EnvConfig
    num_envs: int
    seed: int  #: of the first environment; the others follow
    infos: bool  #: whether answers carry them
    masks: bool  #: whether some environments may be reset while others play on

    @classmethod
    def read(cls, entries: dict[Any, Any]) -> SessionRequest:
        """Read and check the entries of a HELLO.

        Raises:
          RemoteProtocolError: an entry is invalid; the error names it.
        """
        num_envs = _integer(entries, "num_envs", 1, MAX_ENVS_PER_SESSION)
        seed = _integer(entries, "seed", 0, MAX_ENV_SEED)
        infos, masks = _boolean(entries, "infos"), _boolean(entries, "reset_masks")
        wanted = entries.get("env")
        if isinstance(wanted, dict) and len(wanted) > len(EnvConfig.model_fields):  # pydantic would list each
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
            raise RemoteProtocolError(
                f"env.id: {len(env.id)} characters, expected at most {MAX_ID_LENGTH}: a relative path is enough",
                "terms",
            )
        return cls(env, num_envs, seed, infos, masks)


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
        seed, options, mask = body
        env_id = env.spec.env_id
        if isinstance(seed, list):
            _check_seeds(seed, env)
        elif seed is not None:
            _integer({"seed": seed}, "seed", 0, MAX_ENV_SEED)
        if options is not None and not env.takes_options:
            raise RemoteProtocolError(f"options: environments {env_id!r} take none at a reset", "terms")
        if options is not None and (size := len(pack(options))) > MAX_OPTIONS_BYTES:
            raise RemoteProtocolError(f"options: {size} bytes, expected at most {MAX_OPTIONS_BYTES}", "terms")
        return cls(seed, options, None if mask is None else _mask(mask, env))


def _check_seeds(seeds: list[Any], env: VectorEnv) -> None:
    if len(seeds) != env.num_envs:
        raise RemoteProtocolError(f"seed: a list of {len(seeds)}, expected one for each of {env.num_envs}", "terms")
    for i, seed in enumerate(seeds):
        if seed is not None:
            _integer({f"seed[{i}]": seed}, f"seed[{i}]", 0, MAX_ENV_SEED)
    if not env.independent:
        raise RemoteProtocolError(f"seed: environments {env.spec.env_id!r} have one generator, {UNLESS}", "terms")


def _mask(mask: list[Any], env: VectorEnv) -> NDArray[np.bool_]:
    if len(mask) != env.num_envs or any(type(entry) is not bool for entry in mask) or not any(mask):
        raise RemoteProtocolError(
            f"mask: {mask!r:.200}, expected {env.num_envs} booleans of which one at least is true", "terms"
        )
    if not env.independent:
        raise RemoteProtocolError(f"mask: environments {env.spec.env_id!r} are reset all together, {UNLESS}", "terms")
    return np.array(mask)


def _boolean(entries: dict[Any, Any], name: str) -> bool:
    value = entries.get(name, False)
    if type(value) is not bool:
        raise RemoteProtocolError(f"{name}: expected a boolean, not {value!r:.200}", "terms")
    return value


def _integer(entries: dict[Any, Any], name: str, low: int, high: int) -> int:
    value = entries.get(name)
    if type(value) is not int or not low <= value <= high:
        raise RemoteProtocolError(f"{name}: expected an integer from {low} to {high}, not {value!r:.200}", "terms")
    return value
