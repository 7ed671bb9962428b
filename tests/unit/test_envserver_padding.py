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
from zerobeast.common.wire import EnvSpec
from zerobeast.services.envserver.padding import Padding, alike, sizes_of
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.testing.sessions import session

SMALL = f"{__name__}:Small"


class Small(gymnasium.Env[np.ndarray, int]):
    """Three choices, one of which is masked, and a picture of ones."""

    observation_space: Space[Any] = Box(0, 1, (2, 3), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.ones((2, 3), np.uint8), {"mask": [1, 0, 1]}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.ones((2, 3), np.uint8), 0.0, False, False, {"mask": [0, 1, 1]}


def spec(obs: Space[Any], actions: Space[Any], **more: int) -> EnvSpec:
    return env_spec("Any-v0", obs, actions, **more)


def test_a_smaller_observation_is_in_the_corner_and_its_own_mask_within_the_larger_one() -> None:
    with session(SMALL, {"action_mask": "mask", "pad_obs": [4, 3], "pad_actions": 5}, envs=2) as env:
        assert env.reset()["action_mask"].tolist() == [[True, False, True, False, False]] * 2
        assert env.step(np.array([0, 2]))["action_mask"].tolist() == [[False, True, True, False, False]] * 2
        assert env.reset(only=np.array([True, False]))["action_mask"][:, 0].tolist() == [True, False]
        assert (env.rows["obs"] == np.pad(np.ones((2, 3)), ((0, 2), (0, 0)))).all()
        with pytest.raises(EnvError, match="environment 1 is 4"):  # a choice that only padding has
            env.step(np.array([0, 4]))


def test_the_sizes_of_an_environment_are_known_to_policies() -> None:
    assert sizes_of(spec(Box(0, 1, (2, 5)), Discrete(4, start=3))) == (4, 3, 2, 5)
    tasks, pads = "CartPole-v1,Acrobot-v1", ["--env.pad_obs", "7", "--env.pad_actions", "3"]
    command = [sys.executable, "-m", "zerobeast.services.envserver", "describe", "--env", tasks, *pads]
    described = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=100).stdout)
    assert described["obs"]["shape"] == [7]
    assert described["settings"]["sizes"] == {"CartPole-v1": [2, 0, 4], "Acrobot-v1": [3, 0, 6]}


BOX, LONG, TALL = Box(0, 1, (4,)), Box(0, 1, (6,)), Box(0, 1, (2, 2))


@pytest.mark.parametrize(
    ("specs", "sizes"),
    [
        ([spec(BOX, Discrete(2)), spec(Box(0, 1, (9,)), Discrete(2))], Padding((9,))),
        ([spec(BOX, Discrete(2)), spec(BOX, Discrete(3)), spec(BOX, Discrete(1))], Padding((), 3)),
        ([spec(Box(0, 1, (2, 5)), Discrete(2)), spec(Box(0, 1, (4, 3)), Discrete(4))], Padding((4, 5), 4)),
        ([spec(BOX, Discrete(2)), spec(BOX, Discrete(2), masked=True)], Padding((), 2)),
        ([spec(BOX, Discrete(2)), spec(TALL, Discrete(2))], Padding()),
        ([spec(Dict(a=BOX), Discrete(2)), spec(BOX, Discrete(2))], Padding()),
    ],
)
def test_only_sizes_that_differ_are_padded_to_the_largest(specs: list[EnvSpec], sizes: Padding) -> None:
    assert Padding.among(specs) == sizes
    if any(sizes):
        assert len({sizes.of(each).for_policies() for each in specs}) == 1


@pytest.mark.parametrize(
    ("sizes", "wrong", "setting"),
    [
        (Padding((3,)), spec(BOX, Discrete(2)), "env.pad_obs"),
        (Padding((9, 9)), spec(BOX, Discrete(2)), "env.pad_obs"),
        (Padding((9,)), spec(Dict(a=BOX), Discrete(2)), "env.pad_obs"),
        (Padding((), 2), spec(BOX, Discrete(3)), "env.pad_actions"),
        (Padding((), 2), spec(BOX, BOX), "env.pad_actions"),
        (Padding((65_536, 65_536)), spec(TALL, Discrete(2)), "env.id"),
    ],
)
def test_what_does_not_fit_is_refused(sizes: Padding, wrong: EnvSpec, setting: str) -> None:
    with pytest.raises(EnvError, match=f"^{setting} "):
        sizes.of(wrong)


@pytest.mark.parametrize(
    ("spaces", "odd_one"),
    [
        ([(BOX, Discrete(2)), (LONG, Discrete(3)), (BOX, BOX)], 2),
        ([(BOX, Discrete(2)), (LONG, Discrete(2)), (TALL, Discrete(2))], 2),
        ([(BOX, Discrete(2)), (Box(0, 1, (70_000,)), Discrete(2))], 1),
    ],
)
def test_the_environment_that_cannot_be_like_the_others_is_named(
    spaces: list[tuple[Space[Any], Space[Any]]], odd_one: int
) -> None:
    with pytest.raises(EnvError, match=f"^env.id {odd_one}: "):
        alike([env_spec(str(i), *each) for i, each in enumerate(spaces)])
