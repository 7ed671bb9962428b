"""Settings of a call in Python, as the flags that say the same: whatever reads and checks flags does so for both."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from numbers import Number
from typing import Any

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.table import TREE
from zerobeast.common.errors import ConfigError
from zerobeast.common.plugins import reference_to


def flags_for(settings: Mapping[str, Any]) -> list[str]:
    """Flags for settings by section or by path; classes and other objects become references, and None is not given.

    Raises:
      ConfigError: no other process can import one of those, or one is an entry of a list or dict.

    >>> flags_for({"seed": 3, "net": {"hidden_size": 64, "use_lstm": True}, "learner.batch_size": 8, "name": None})
    ['--seed=3', '--net.hidden_size=64', '--net.use_lstm=true', '--learner.batch_size=8']
    """
    return [f"--{path}={_text(path, value)}" for path, value in _leaves(settings, "") if value is not None]


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict) and prefix + name not in TREE:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(path: str, value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=partial(_plain, path))
    if hasattr(type(value), "tolist"):
        return _text(path, value.tolist())
    if isinstance(value, str | os.PathLike):
        return str(value)
    return as_text(value) if isinstance(value, Number) else reference_to(value, path)


def _plain(path: str, entry: Any) -> Any:
    if isinstance(entry, os.PathLike):
        return str(entry)
    if hasattr(type(entry), "tolist"):
        return entry.tolist()
    raise ConfigError(f"{path} holds {entry!r:.100}, expected text, numbers, lists and dicts")
