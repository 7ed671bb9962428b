"""What a HELLO on each plane may hold, and what it must not."""

import random
from typing import Any

from zerobeast.common.errors import Refusal
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.messages import Plane

ENV = "CartPole-v1"
UNROLL_LENGTH = 5  #: of the run under attack
CARTPOLE = EnvSpec(ENV, ArraySpace.box((4,)), ArraySpace.discrete(2))
Terms = dict[str, Any]


#: terms that are accepted, by plane
HELLOS: dict[Plane, Terms] = {
    Plane.STEPS: {"env": {"id": ENV}, "num_envs": 1, "seed": 0, "infos": True},
    Plane.INFERENCE: {"env": CARTPOLE.to_wire(), "num_envs": 1},
    Plane.ROLLOUTS: {"env": CARTPOLE.to_wire(), "policy": None, "unroll_length": UNROLL_LENGTH, "num_envs": 1},
}


def bad_terms(rng: random.Random, plane: Plane) -> tuple[Terms, Refusal]:
    """Terms that are refused, and the reason that is counted."""
    terms = HELLOS[plane]
    if plane is Plane.STEPS:
        return terms | _one_of(rng, _STEPS), "terms"
    if rng.random() < 0.5:
        return terms | {"env": _bad_env(rng)}, "spec"
    name = "num_envs" if plane is Plane.INFERENCE else rng.choice(["num_envs", "unroll_length"])
    wrong = [number for number in _NUMBERS if number is not None or name != "unroll_length"]  # None is valid there
    return terms | {name: _one_of(rng, wrong)}, "terms"


def _bad_env(rng: random.Random) -> Any:
    good = CARTPOLE.to_wire()
    name = rng.choice([*_ENV, *_SPACES, ""])
    if name in _SPACES:
        wrong = _one_of(rng, _SPACES[name])
        return good | {name: wrong if "spaces" in wrong else good[name] | wrong}
    return good | {name: _one_of(rng, _ENV[name])} if name else rng.choice([None, [], "env", {}])


def _each(key: str, *values: Any) -> list[Terms]:
    return [{key: value} for value in values]


def _one_of(rng: random.Random, values: list[Any]) -> Any:
    """Pick a value; functions are called only when picked, since most of their results are large."""
    value = rng.choice(values)
    return value() if callable(value) else value


_NUMBERS: list[Any] = [0, -1, None, True, "x", 1.5, 10**7, 2**63, lambda: [1] * 1000]
_STEPS: list[Any] = [
    *_each("num_envs", 0, -1, 10**9, None, "many", 2**63, [[]]),
    *_each("seed", -1, 2**31, 1.5, None),
    *_each("infos", 1, "yes", None, {}),
    *_each("reset_masks", 1, "yes", None, {}),
    *_each("env", None, [], ENV, {"id": " "}, {"id": 5}, {"id": ENV, "frame_skp": 1}),
    *_each("env", *({"id": ENV, **wrong} for wrong in _each("frame_skip", 0, 10**9, "x", [], float("inf")))),
    *_each("env", *({"id": ENV, **wrong} for wrong in _each("kwargs", None, "x", [1], {1: 2}))),
    lambda: {"env": {"id": "x" * 60_000}},
    lambda: {"env": {"id": ENV, **{f"k{i}": i for i in range(5000)}}},
]
_ENV: dict[str, list[Any]] = {
    "frame_stack": [0, -1, 2**62, 1.0, None],
    "frame_skip": [0, -5, "4"],
    "env_id": [None, 5, b"x"],
    "action_mask": [None, 1, "yes"],
}
_PART = {"kind": "discrete", "dtype": "<i8", "shape": [], "sizes": [2], "low": [], "high": []}


def _deep() -> Terms:
    """A space in a space in a space."""
    space: dict[str, Any] = _PART
    for _ in range(6):
        space = {"kind": "tuple", "spaces": [["1", space]]}
    return space


_OBS: list[Any] = [
    *_each("kind", "", "discrete", "dict", None),
    *_each("shape", [0], [-1], [2**62] * 7, [2**40], [1] * 8, "x", [1.5]),
    *_each("dtype", "|O", "|V8", ">f4", "<U9", "", 5),
    *_each("low", [], [0.0] * 3, [float("nan")], "x"),
    *({"kind": "dict", "spaces": spaces} for spaces in ([], 5, [5], [["a"]], [["a", _PART]] * 2, [["", _PART]])),
    lambda: {"kind": "dict", "spaces": [[str(i), _PART] for i in range(1000)]},
    lambda: {"shape": [127] * 50_000},
    lambda: {"dtype": "|S" + "9" * 10_000},
    _deep,
]
_ACTION: list[Any] = [
    *_each("kind", "", "box", "continuous", None),
    *_each("shape", [2**62] * 6, [0], [2]),
    *_each("sizes", [], [0], [2**62], [2, 2]),
    lambda: {"shape": [127] * 50_000},
    lambda: {"sizes": [1] * 60_000},
    lambda: {"low": [0.0] * 5000},
    {"low": [float("nan")], "high": [1.0]},
]
_SPACES = {"obs": _OBS, "action": _ACTION}
