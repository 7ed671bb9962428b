"""Makes single environments: those of backends, and those that a reference names.

A reference is `module:Name` or `folder/script.py:Name`. Name is a class or function of the module, or the id of an
environment that the module registers with gymnasium.
"""

from __future__ import annotations

import re
from typing import Any

from zerobeast.common import plugins
from zerobeast.common.errors import EnvError
from zerobeast.common.text.suggest import did_you_mean
from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.backend import backend_at, reference_for
from zerobeast.services.envserver.vector import contained


def make_env(env_id: str, kwargs: dict[str, Any], backend: str = "") -> Any:
    """Make one environment.

    Args:
      env_id: an id or a reference.
      kwargs: of its constructor.
      backend: reference of the backend that the env-server has found; by default it is found here.

    Raises:
      EnvError: it is unknown, its package is missing, its constructor raises or makes something else.
    """
    part = None if ":" in env_id else backend_at(backend or reference_for(env_id), env_id)
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
