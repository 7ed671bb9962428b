"""Presets: named layers between the defaults and the user's file. Each is a YAML file in presets/ here, or in presets/
beside the settings of an algorithm, where PPO's `atari.yaml` is called "atari-ppo".

If the user names none, the family of the environment and the algorithm choose it: what suits Pong does not suit
CartPole. An algorithm without a preset for the family has its parent's. If there is none either, it has the preset that
is named after the family alone: this one has IMPALA's settings, of which only those of the run apply, as the origin of
the preset notes.
The family follows from the spaces of the environment; widely used environments are recognised by their ids.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import read_yaml
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import MIN_SHALLOW_SIDE, AlgorithmSpec, NetConfig, Reading, Run, find_usable
from zerobeast.common.settings.algorithm import spec_of_section
from zerobeast.common.text import did_you_mean, split_ids
from zerobeast.common.wire import EnvSpec

FOLDER = Path(__file__).parent / "presets"
OTHER_FAMILY = "classic"
FAMILIES = (
    ("atari", re.compile(r".*NoFrameskip|ALE/[^:]*$|zipf/Gridworld(-uniform|-rare)?$")),
    ("minatar", re.compile(r"(MinAtar/|zipf/Gridworld-small)[^:]*$")),
    ("football", re.compile(r"football/[^:]*$")),
    ("cartpole", re.compile(r"CartPole-v\d")),
    ("lunarlander", re.compile(r"LunarLander-v\d")),
    (OTHER_FAMILY, re.compile(r"(Acrobot|MountainCar)-v\d")),
    (
        "control",
        re.compile(
            r"(Pendulum|Inverted(Double)?Pendulum|MountainCarContinuous|BipedalWalker|LunarLanderContinuous|Ant|"
            r"HalfCheetah|Hopper|Humanoid(Standup)?|Pusher|Reacher|Swimmer|Walker2d)-v\d"
        ),
    ),
)


def list_presets() -> list[str]:
    """The presets of this project and of all algorithms."""
    return sorted(_files(find_usable()))


def _files(specs: Iterable[AlgorithmSpec]) -> dict[str, Path]:
    files = {path.stem: path for path in FOLDER.glob("*.yaml")}
    for spec in specs:
        files |= spec.presets
    return files


def _family_by_spaces(env: EnvSpec) -> str:
    if all(array.kind == "box" for array in env.action.arrays):
        return "control"
    sides = [min(array.image_size or ()) for array in env.obs.arrays if Reading.of(array, NetConfig()).convolved]
    if not sides:
        return OTHER_FAMILY
    return "atari" if max(sides) >= MIN_SHALLOW_SIDE else "minatar"


def family_of(env_id: str) -> str | None:
    """That of a widely used environment, none of which has several agents; None for any other."""
    return next((name for name, pattern in FAMILIES if pattern.match(env_id)), None)


def choose_preset(
    env_id: str,
    spec: AlgorithmSpec,
    describe: Callable[[], EnvSpec] | None = None,
    *,
    with_arguments: bool = False,
) -> str:
    """The preset for an environment (the first of several) and an algorithm.

    Args:
      env_id: one id, or several with commas.
      spec: the algorithm.
      describe: returns the spec of an environment whose id is unknown; without it, its family is the classic one.
      with_arguments: whether the environment's constructor gets arguments, so that its id does not decide the family.
    """
    family = family_of(split_ids(env_id)[0])
    if describe and (with_arguments or not family):
        family = _family_by_spaces(describe())
    family, known = family or OTHER_FAMILY, _files(spec.lineage)
    for each in (family, OTHER_FAMILY):
        for name in (*(f"{each}-{one.name}" for one in spec.lineage), each):
            if name in known:
                return name
    raise AssertionError(f"there is a preset {OTHER_FAMILY}")


def load_preset(name: str, spec: AlgorithmSpec | None = None) -> dict[str, Any]:
    """The settings of a preset, for this algorithm or for any.

    Raises:
      ConfigError: there is no preset of that name, or it belongs to an algorithm that is no ancestor of this one.
    """
    owner = spec_of_section(name.rpartition("-")[2])
    files = _files([owner] if owner else [])
    if name not in files:
        sentence = f"preset {name!r}: unknown{did_you_mean(name, list_presets())} (known: {', '.join(list_presets())})"
        raise ConfigError(sentence, path="preset", value=name)
    if spec and name not in (fit := _files(spec.lineage)):
        expected = f"one of {', '.join(sorted(fit))}"
        sentence = f"preset {name!r}: not for algo {spec.name}, expected {expected}"
        raise ConfigError(sentence, path="preset", value=name, expected=expected, beside=["algo"])
    return read_yaml(files[name], f"preset {name}")


def select_settings(spec: AlgorithmSpec, tree: dict[str, Any]) -> dict[str, Any]:
    """The settings of a preset for an algorithm: those of its parents are its own, those of others are left out."""
    lineage = [one.name for one in spec.lineage]
    own = next(({spec.name: tree[one]} for one in lineage if one in tree), {})
    return {key: value for key, value in tree.items() if key in Run.model_fields} | own
