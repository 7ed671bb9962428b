"""The settings of a call in Python, by section or by path, as plain values: what a file could have as well."""

import os
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

from zerobeast.common.config.env_argument import resolve_env
from zerobeast.common.config.settings_table import TREE
from zerobeast.common.errors import ConfigError
from zerobeast.common.plugins import reference_to
from zerobeast.common.settings.arguments import to_plain
from zerobeast.common.text import as_text

PYTHON_NAMES = {"env_kwargs": "env.kwargs"}  #: names of settings for calls alone


def add_env(env: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a call whose environment is an argument of its own, beside or in place of others of its section.

    >>> add_env("Walk-v0", {"seed": 3, "env": {"action_mask": "mask"}})
    {'seed': 3, 'env': {'id': 'Walk-v0', 'action_mask': 'mask'}}

    Raises:
      ConfigError: both have an environment.
    """
    others = settings.get("env", {})
    section = others if isinstance(others, dict) else {"id": others}
    if env is not None and section.get("id", env) is not env:
        sentence = f"env is given twice, {env!r:.100} and {section['id']!r:.100}: expected one of them"
        raise ConfigError(sentence, path="env", value=env, beside=["env.id"])
    return {**settings, "env": {"id": env, **section}}


def plain_values(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Paths with values, of a mapping perhaps several; classes and other objects become references, None is left out.

    Raises:
      ConfigError: no other process can import one of those, or what is in a list or dict is not plain.

    >>> plain_values({"seed": 3, "net": {"hidden_size": 64, "core": "lstm"}, "learner.batch_size": 8, "name": None})
    [('seed', 3), ('net.hidden_size', 64), ('net.core', 'lstm'), ('learner.batch_size', 8)]
    """
    return [(path, _to_plain(path, value)) for path, value in _leaves(settings, "") if value is not None]


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        path = PYTHON_NAMES.get(prefix + name, prefix + name)
        if isinstance(value, dict) and path not in TREE:
            yield from _leaves(value, f"{path}.")
        elif path in ("env", "env.id") and value is not None:
            env_id, arguments = resolve_env(value)
            yield from (("env.kwargs", arguments or None), (path, env_id))
        else:
            yield path, value


def _to_plain(path: str, value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return to_plain(value, path)
    if hasattr(type(value), "tolist"):
        return _to_plain(path, value.tolist())
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool | int | float):
        return value
    return as_text(value) if isinstance(value, Number) else reference_to(value, path)
