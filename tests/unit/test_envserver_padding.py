"""Environments of unequal sizes as equals: rows that end in zeros, masks of the choices that each has, and refusals."""

import json
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.bits import unpacked_rows
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.padding import Padding, alike, sizes_of
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.services.envserver.vector import VectorEnv

SMALL = f"{__name__}:Small"


class Small(gymnasium.Env[np.ndarray, int]):
    """Three choices, one of which is masked, and a picture of ones."""

    observation_space: Space[Any] = Box(0, 1, (2, 3), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.ones((2, 3), np.uint8), {"mask": [1, 0, 1]}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.ones((2, 3), np.uint8), 0.0, False, False, {"mask": [0, 1, 1]}


def made(env_id: str, masks: bool = False, **settings: Any) -> VectorEnv:
    server = EnvServerConfig(in_process=True)
    env = make_vector_env(EnvConfig.model_validate({"id": env_id, **settings}), 2, 0, server, masks=masks)
    finish(env)
    return env


def finish(env: VectorEnv) -> None:
    while not env.collect():
        pass


def spec(obs: Space[Any], actions: Space[Any], **more: int) -> EnvSpec:
    return env_spec("Any-v0", obs, actions, **more)


def test_a_smaller_observation_is_in_the_corner_and_its_own_mask_within_the_larger_one() -> None:
    env = made(SMALL, action_mask="mask", pad_obs=[4, 3], pad_actions=5)
    env.reset()
    finish(env)
    assert env.spec.obs.arrays[0].shape == (4, 3)
    assert env.spec.mask_size == 5
    assert (env.rows["obs"] == np.pad(np.ones((2, 3)), ((0, 2), (0, 0)))).all()
    assert env.rows["action_mask"].tolist() == [[True, False, True, False, False]] * 2
    env.step(np.array([0, 2]))
    finish(env)
    assert env.rows["action_mask"].tolist() == [[False, True, True, False, False]] * 2
    env.reset(only=np.array([True, False]))
    finish(env)
    assert env.rows["action_mask"][:, 0].tolist() == [True, False]
    assert env.rows["obs"].sum() == 12
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Breakout-v5", "MinAtar/Breakout-v1"])
@pytest.mark.parametrize("masks", [False, True])
def test_rows_of_every_kind_of_vector_environment_are_those_without_padding_and_zeros(env_id: str, masks: bool) -> None:
    plain, padded = (made(env_id, masks and env_id[0] != "A", **pads) for pads in ({}, sizes(env_id)))
    size = plain.spec.action.choices[0]
    for env in (plain, padded):
        env.reset()
        finish(env)
    for actions in np.random.default_rng(0).integers(0, size, (100, 2)):
        for env in (plain, padded):
            env.step(actions.copy())
            finish(env)
        whole, own = (unpacked_rows(env.rows, env.spec)["obs"] for env in (padded, plain))
        inner = whole[:, *map(slice, plain.spec.obs.arrays[0].shape)]
        assert (inner == own).all()
        assert whole.astype(float).sum() == inner.astype(float).sum(), "all else is zeros"
        assert padded.rows["action_mask"].tolist() == [[True] * size + [False]] * 2
        for name in ("reward", "terminated", "truncated", "first"):
            assert (padded.rows[name] == plain.rows[name]).all()
        assert padded.episodes == plain.episodes
    for env in (plain, padded):
        env.close()


def sizes(env_id: str) -> dict[str, Any]:
    known = made(env_id).spec
    return {"pad_obs": [size + 1 for size in known.obs.arrays[0].shape], "pad_actions": known.action.choices[0] + 1}


def test_the_sizes_of_an_environment_are_known_to_policies() -> None:
    assert sizes_of(spec(Box(0, 1, (2, 5)), Discrete(4, start=3))) == (4, 3, 2, 5)
    tasks, pads = "CartPole-v1,Acrobot-v1", ["--env.pad_obs", "7", "--env.pad_actions", "3"]
    command = [sys.executable, "-m", "zerobeast.services.envserver", "describe", "--env", tasks, *pads]
    described = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=100).stdout)
    assert described["obs"]["shape"] == [7]
    assert described["settings"]["sizes"] == {"CartPole-v1": [2, 0, 4], "Acrobot-v1": [3, 0, 6]}


def test_a_choice_that_only_padding_has_reaches_no_environment() -> None:
    for env_id in (SMALL, "CartPole-v1"):
        env = made(env_id, pad_actions=5)
        env.reset()
        finish(env)
        with pytest.raises(EnvError, match=rf"^environment '{env_id}': .* environment 1 is 4, expected 0 to [12]$"):
            env.step(np.array([0, 4]))
        env.close()


BOX, LONG, TALL = Box(0, 1, (4,)), Box(0, 1, (6,)), Box(0, 1, (2, 2))


@pytest.mark.parametrize(
    ("specs", "sizes"),
    [
        ([spec(BOX, Discrete(2)), spec(BOX, Discrete(2))], Padding()),
        ([spec(BOX, Discrete(2)), spec(Box(0, 1, (9,)), Discrete(2))], Padding((9,))),
        ([spec(BOX, Discrete(2)), spec(BOX, Discrete(3)), spec(BOX, Discrete(1))], Padding((), 3)),
        ([spec(Box(0, 1, (2, 5)), Discrete(2)), spec(Box(0, 1, (4, 3)), Discrete(4))], Padding((4, 5), 4)),
        ([spec(BOX, Discrete(2)), spec(BOX, Discrete(2), masked=True)], Padding((), 2)),
        ([spec(BOX, Discrete(2)), spec(TALL, Discrete(2))], Padding()),
        ([spec(BOX, Discrete(2)), spec(BOX, BOX)], Padding()),
        ([spec(Dict(a=BOX), Discrete(2)), spec(BOX, Discrete(2))], Padding()),
    ],
)
def test_only_sizes_that_differ_are_padded_to_the_largest(specs: list[EnvSpec], sizes: Padding) -> None:
    assert Padding.among(specs) == sizes
    if any(sizes):
        assert len({sizes.of(each).for_policies() for each in specs}) == 1


@pytest.mark.parametrize(
    ("sizes", "wrong", "sentence"),
    [
        (Padding((3,)), spec(BOX, Discrete(2)), r"^env.pad_obs is \[3\], but an observation of Any-v0 is a box of sha"),
        (Padding((9, 9)), spec(BOX, Discrete(2)), r"^env.pad_obs is \[9, 9\], .* is a box of shape \[4\]: expected"),
        (Padding((9,)), spec(Dict(a=BOX), Discrete(2)), r"^env.pad_obs is \[9\], but .* is no box: expected"),
        (Padding((), 2), spec(BOX, Discrete(3)), r"^env.pad_actions is 2, but Any-v0 has 3 discrete actions, expected"),
        (Padding((), 2), spec(BOX, BOX), r"^env.pad_actions is 2, but Any-v0 has no discrete actions, expected"),
        (Padding((65_536, 65_536)), spec(TALL, Discrete(2)), r"^env.id 'Any-v0' is not supported: obs is .* bytes"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(sizes: Padding, wrong: EnvSpec, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        sizes.of(wrong)


@pytest.mark.parametrize(
    ("spaces", "sentence"),
    [
        ([(BOX, Discrete(2)), (LONG, Discrete(3)), (BOX, BOX)], "^env.id 2: action.kind is box, expected"),
        (
            [(BOX, Discrete(2)), (LONG, Discrete(2)), (TALL, Discrete(2))],
            r"^env.id 2: obs.shape is \[2, 2\]",
        ),
        (
            [(BOX, Discrete(2)), (Box(0, 1, (70_000,)), Discrete(2))],
            r"^env.id 1: obs.shape is \[70000\], expected ",
        ),
    ],
)
def test_the_environment_that_cannot_be_like_the_others_is_named(
    spaces: list[tuple[Space[Any], Space[Any]]], sentence: str
) -> None:
    with pytest.raises(EnvError, match=sentence):
        alike([env_spec(str(i), *each) for i, each in enumerate(spaces)])
