"""Presets: named layers between the defaults and the user's file. One YAML file each, in presets/.

Where the user names none, the family of the environment chooses: what learns Pong wastes CartPole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.config.layers import read_yaml
from common.config.words import did_you_mean
from common.errors import ConfigError

FOLDER = Path(__file__).parent / "presets"
ATARI, MINATAR, CLASSIC = "atari", "minatar", "classic"


def names() -> list[str]:
    """Every preset there is."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def family(env_id: str) -> str:
    """The preset for an environment: atari, minatar, or classic for all others."""
    if "NoFrameskip" in env_id or env_id.startswith("ALE/"):
        return ATARI
    return MINATAR if env_id.startswith("MinAtar/") else CLASSIC


def read(name: str) -> dict[str, Any]:
    """The settings of a preset.

    Raises:
      ConfigError: there is none of that name.
    """
    known = names()
    if name not in known:
        raise ConfigError(f"preset {name!r}: unknown{did_you_mean(name, known)} (known: {', '.join(known)})")
    return read_yaml(FOLDER / f"{name}.yaml", f"preset {name}")
