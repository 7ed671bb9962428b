"""Settings of a call in Python, as the flags that say the same: whatever reads and checks flags does so for both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.table import TREE


def flags_for(settings: Mapping[str, Any]) -> list[str]:
    """Flags for settings that are given by section or by path; None: not given.

    >>> flags_for({"seed": 3, "net": {"hidden_size": 64, "use_lstm": True}, "learner.batch_size": 8, "name": None})
    ['--seed=3', '--net.hidden_size=64', '--net.use_lstm=true', '--learner.batch_size=8']
    """
    return [f"--{path}={_text(value)}" for path, value in _leaves(settings, "") if value is not None]


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict) and prefix + name not in TREE:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str)
    return value if isinstance(value, str) else as_text(value)
