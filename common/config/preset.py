"""Presets: named layers between the defaults and the user's file. One YAML file each, in presets/ here, and in presets/
of an algorithm, where `atari.yaml` of PPO's is called "atari-ppo".

Where the user names none, the environment's family and the algorithm choose: what learns Pong wastes CartPole. One
named after the family alone is IMPALA's, and of every algorithm that has none of its own there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import read_yaml
from zerobeast.common.errors import ConfigError
from zerobeast.common.runtime.suggest import did_you_mean

FOLDER = Path(__file__).parent / "presets"
ALGORITHMS = Path(__file__).parents[1] / "algos"
FAMILIES = (
    ("atari", re.compile(r".*NoFrameskip|ALE/")),
    ("minatar", re.compile(r"MinAtar/")),
    (
        "control",  # real actions, as far as gymnasium's names tell
        re.compile(
            r"(Pendulum|Inverted(Double)?Pendulum|MountainCarContinuous|BipedalWalker|LunarLanderContinuous|Ant|"
            r"HalfCheetah|Hopper|Humanoid(Standup)?|Pusher|Reacher|Swimmer|Walker2d)-v\d"
        ),
    ),
)
OTHERS = "classic"


def names() -> list[str]:
    """Every preset there is."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    general = {path.stem: path for path in FOLDER.glob("*.yaml")}
    return general | {f"{path.stem}-{path.parts[-3]}": path for path in ALGORITHMS.glob("*/presets/*.yaml")}


def family(env_id: str) -> str:
    """What an environment, of several the first, is like: atari, minatar, control, or classic for all others."""
    first = env_id.partition(",")[0].strip()
    return next((name for name, pattern in FAMILIES if pattern.match(first)), OTHERS)


def fitting(env_id: str, algo: str) -> str:
    """The preset for an environment and an algorithm."""
    of_env, known = family(env_id), names()
    return next(name for name in (f"{of_env}-{algo}", of_env, f"{OTHERS}-{algo}", OTHERS) if name in known)


def read(name: str) -> dict[str, Any]:
    """The settings of a preset.

    Raises:
      ConfigError: there is none of that name.
    """
    files = _files()
    if name not in files:
        known = sorted(files)
        raise ConfigError(f"preset {name!r}: unknown{did_you_mean(name, known)} (known: {', '.join(known)})")
    return read_yaml(files[name], f"preset {name}")
