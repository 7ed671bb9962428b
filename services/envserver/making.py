"""Makes single environments from the ids that users write."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import Any

from zerobeast.common.errors import EnvError
from zerobeast.services.envserver.vector import contained


def make_env(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment.

    Raises:
      EnvError: the id is unknown, its package is missing or its constructor raises.
    """
    import gymnasium

    name = _registered(env_id)
    _calm_mujoco(name)
    with contained(f"env.id {env_id!r} cannot be made"):
        return gymnasium.make(name, **{"disable_env_checker": True, **kwargs})


def _registered(env_id: str) -> str:
    """The id in gymnasium's registry, once the package that provides it has registered it."""
    if env_id.startswith("MinAtar/"):
        try:
            register = importlib.import_module("minatar.gym").register_envs
        except ImportError as error:
            raise EnvError(f'env.id {env_id!r} needs MinAtar: pip install "zerobeast[minatar]" ({error})') from error
        import gymnasium

        if not any(name.startswith("MinAtar/") for name in gymnasium.registry):
            register()
        return env_id if "-v" in env_id else f"{env_id}-v1"
    return env_id


def _calm_mujoco(name: str) -> None:
    """Make MuJoCo print each warning once; by default it repeats them for every environment, and in a file."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    if spec is None or not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        return
    with contextlib.suppress(ImportError):  # gymnasium says what is missing
        importlib.import_module("mujoco").set_mju_user_warning(_warn_once)


@functools.lru_cache(maxsize=100)  # some contain the simulation time, so no two are alike
def _warn_once(text: str) -> None:
    sys.stderr.write(f"MuJoCo: {text}\n")
