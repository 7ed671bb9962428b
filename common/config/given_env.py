"""The environment of a call in Python: as an id by which other processes make it, and its arguments."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.plugins import MAIN, home_of, is_own, reference_to

APART = "with its arguments in env_kwargs={...}"


def id_and_arguments(env: Any) -> tuple[str, dict[str, Any]]:
    """What is to be made: an id, or a class or function, or a `functools.partial` of one with arguments by name.

    Raises:
      ConfigError: no other process can make it.
    """
    if isinstance(env, partial):
        if env.args:
            raise ConfigError(f"env is {env!r:.100}, expected its arguments by name")
        env_id, arguments = id_and_arguments(env.func)
        return env_id, {**arguments, **env.keywords}
    if isinstance(env, str):
        return _found(env), {}
    if not callable(env):
        raise ConfigError(f"env is {env!r:.100}, expected what makes it, as its class {type(env).__name__}, {APART}")
    try:
        return reference_to(env, "env"), {}
    except ConfigError as error:
        raise ConfigError(f"{error}, {APART}") from error


def _found(env_id: str) -> str:
    """The same id, or one with the module in front that registers it, if only a module of the user's own does.

    Raises:
      ConfigError: no file of such a module has this id.
    """
    registered = getattr(sys.modules.get("gymnasium"), "registry", {}).get(env_id)
    if registered is None:
        return env_id
    made_by = registered.entry_point
    home = made_by.partition(":")[0] if isinstance(made_by, str) else getattr(made_by, "__module__", "")
    module = sys.modules.get(home)
    if home not in MAIN and not (module and is_own(module)):
        return env_id
    own = [each for name, each in sys.modules.copy().items() if name != MAIN[1] and is_own(each)]
    for each in sorted(own, key=lambda one: (one.__name__ == MAIN[0], one.__name__ != home)):
        if env_id in Path(each.__file__ or "").read_text(encoding="utf-8", errors="replace"):
            return f"{home_of(each, 'env')}:{env_id}"
    raise ConfigError(f"env {env_id!r} is registered here alone: expected module:{env_id}, of a file that registers it")
