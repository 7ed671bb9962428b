"""Makes the vector environment of a session, and single environments: those of backends, and those of references.

A reference is `module:Name` or `folder/script.py:Name`. Name is a class or function of the module, or the id of an
environment that the module registers with gymnasium.
"""

import re
from functools import partial
from typing import Any

from zerobeast.common import plugins
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.text import did_you_mean
from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.backend import VectorRequest, backend_at, is_reference, reference_for
from zerobeast.services.envserver.inline import InlineVectorEnv
from zerobeast.services.envserver.padding import Padding, padded
from zerobeast.services.envserver.shard import Shard
from zerobeast.services.envserver.vector import VectorEnv, contained
from zerobeast.services.envserver.workers import WorkerVectorEnv


def make_vector_env(
    config: EnvConfig, num_envs: int, seed: int, server: EnvServerConfig, *, masks: bool = False
) -> VectorEnv:
    """Choose what steps N environments, which `VectorEnv.collect` then makes: their backend, or single environments.

    Args:
      config: which environment.
      num_envs: N.
      seed: environment i gets seed + i at the first reset.
      server: threads and workers to use.
      masks: whether some may be reset while others play on, which gymnasium's vectorised implementations cannot do.

    Raises:
      EnvError: the id is unknown or its package is not installed. `collect` raises what only making them reveals.
    """
    plugins.find_own_modules()
    reference, padding = "", Padding.given(config)
    if not is_reference(config.id):
        reference = reference_for(config.id)
        backend = backend_at(reference, config.id)
        with contained(f"env.id {config.id!r} cannot be made"):
            env = backend.make_vec(VectorRequest(config, num_envs, seed, server.threads or 1, masks))
        if isinstance(env, InlineVectorEnv):
            env.make = partial(padded, env.make, padding)
        elif env is not None and any(padding):
            raise EnvError(f"env.id {config.id!r}, backend {reference}: its {type(env).__name__} cannot be padded")
        if isinstance(env, VectorEnv):
            return env
        if env is not None:
            raise EnvError(f"env.id {config.id!r}, backend {reference}: make_vec returned {env!r:.200}, no VectorEnv")
    make = partial(make_env, config.id, dict(config.kwargs), reference)
    shard = partial(padded, partial(Shard, config.id, make, mask=config.action_mask), padding)
    if server.in_process:  # without isolation: breakpoints work, and one that hangs or crashes takes the server with it
        return InlineVectorEnv(shard, num_envs, seed, num_envs)
    return WorkerVectorEnv(config.id, shard, num_envs, seed, server.workers or 1)


def make_env(env_id: str, kwargs: dict[str, Any], backend: str = "") -> Any:
    """Make one environment.

    Args:
      env_id: an id or a reference.
      kwargs: of its constructor.
      backend: reference of the backend that the env-server has found; by default it is found here.

    Raises:
      EnvError: it is unknown, its package is missing, its constructor raises or makes something else.
    """
    part = None if is_reference(env_id) else backend_at(backend or reference_for(env_id), env_id)
    plugins.find_own_modules()  # arguments may be references too
    with contained(f"env.id {env_id!r} cannot be made"):
        import gymnasium

        env = part.make(env_id, kwargs) if part else _by_reference(env_id, kwargs)
        kind = type(env).__name__
        if not isinstance(env, gymnasium.Env):
            raise EnvError(f"env.id {env_id!r}: expected a gymnasium.Env, but what makes it returned {kind}")
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise EnvError(f"env.id {env_id!r}: expected a gymnasium.Space as {name} of {kind}")
    return env


def _by_reference(env_id: str, kwargs: dict[str, Any]) -> Any:
    import gymnasium

    home, _, name = env_id.rpartition(":")
    module = plugins.module_of(home, f"env.id {env_id!r}")
    found = getattr(module, name, None)
    if callable(found) and name not in gymnasium.registry:  # an id may have the name of its class, and wrappers
        return found(**kwargs)
    if any(re.fullmatch(rf"{re.escape(name)}(-v\d+)?", known) for known in gymnasium.registry):
        return gymnasium_backend.make(name, kwargs)
    if found is not None:
        raise EnvError(f"env.id {env_id!r}: expected a class or function, but {name} is of type {type(found).__name__}")
    hint = did_you_mean(name, [*plugins.public(module), *gymnasium.registry])
    raise EnvError(f"env.id {env_id!r}: {home} has no {name!r} and registers no such id{hint}")
