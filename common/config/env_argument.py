"""The environment of a call in Python: as an id by which other processes make it, and its arguments."""

import ast
import sys
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.plugins import MAIN, home_of, is_own, reference_to

KWARGS_HINT = "with its arguments in env_kwargs={...}"


def resolve_env(env: Any) -> tuple[str, dict[str, Any]]:
    """What is to be made: an id, or a class or function, or a `functools.partial` of one with arguments by name.

    Raises:
      ConfigError: no other process can make it.
    """
    if isinstance(env, partial):
        if env.args:
            raise ConfigError(path="env", value=env, expected="a partial with keyword arguments only")
        env_id, arguments = resolve_env(env.func)
        return env_id, {**arguments, **env.keywords}
    if isinstance(env, str):
        return _qualify_id(env), {}
    if not callable(env):
        raise ConfigError(
            path="env", value=env, expected=f"a class or function, such as {type(env).__name__}, {KWARGS_HINT}"
        )
    try:
        return reference_to(env, "env"), {}
    except ConfigError as error:
        raise ConfigError(f"{error}, {KWARGS_HINT}").about(error) from error


def _qualify_id(env_id: str) -> str:
    """The same id, or one with the module of the user's own in front that registers it.

    Raises:
      ConfigError: it is of such a module, and no file registers it.
    """
    if (spec := getattr(sys.modules.get("gymnasium"), "registry", {}).get(env_id)) is None:
        return env_id
    made_by = spec.entry_point
    home = made_by.partition(":")[0] if isinstance(made_by, str) else getattr(made_by, "__module__", "")
    own = {name: each for name, each in sys.modules.copy().items() if name != MAIN[1] and is_own(each)}
    ids = {
        name: _read_registered_ids(own[name]) for name in sorted(own, key=lambda name: (name == MAIN[0], name != home))
    }
    found, is_theirs = [name for name in ids if env_id in ids[name]], home in (*own, *MAIN)
    found += [name for name in (home, MAIN[0]) if is_theirs and None in ids.get(name, ())]
    if is_theirs and not found:
        expected = f"module:{env_id}, with a file that registers it"
        sentence = f"env {env_id!r} is registered only in this process: expected {expected}"
        raise ConfigError(sentence, path="env", value=env_id, expected=expected)
    return f"{home_of(own[found[0]], 'env')}:{env_id}" if found else env_id


def _read_registered_ids(module: ModuleType) -> frozenset[Any]:
    """The ids in a module's calls of `register`; None for one that is computed."""
    file = Path(module.__file__ or "")
    return _parse_registered_ids(file, file.stat().st_mtime_ns)


@cache
def _parse_registered_ids(file: Path, _changed_ns: int) -> frozenset[Any]:
    text = file.read_text(encoding="utf-8", errors="replace")
    with suppress(SyntaxError, ValueError):  # it has been edited since
        calls = [each for each in ast.walk(ast.parse(text if "register" in text else "")) if isinstance(each, ast.Call)]
        calls = [each for each in calls if getattr(each.func, "attr", getattr(each.func, "id", "")) == "register"]
        ids = [(*each.args[:1], *(more.value for more in each.keywords if more.arg == "id")) for each in calls]
        return frozenset(each.value if isinstance(each, ast.Constant) else None for each in chain(*ids))
    return frozenset()
