"""docs/protocol.md put to the test: a program that imports nothing of this project serves environments to it."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from tests.build.planes import the_example
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import Refused
from zerobeast.common.transport import Context


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with the_example(f"ipc://{tmp_path_factory.mktemp('f')}/s") as server:
        yield server.endpoint


@pytest.fixture
def envs(context: Context, endpoint: str) -> Iterator[EnvClient]:
    with EnvClient(context, endpoint, {"id": "CartPole-v1"}, num_envs=5, seed=3) as client:
        yield client


def test_episodes_restart_by_the_rule_and_are_reported_whole(envs: EnvClient) -> None:
    obs = envs.reset()["obs"]
    over, steps, ends = np.zeros(5, bool), np.zeros(5, int), 0
    for turn in range(510):
        actions = np.full(5, turn // 7 % 2)
        actions[0] = obs[0] @ np.array([0.05, 0.2, 1.0, 0.4], np.float32) > 0  # this pole is balanced
        rows, episodes, _ = envs.step(actions)
        obs, steps = rows["obs"], np.where(over, 0, steps + 1)
        np.testing.assert_array_equal(rows["first"], over)
        np.testing.assert_array_equal(rows["reward"], np.where(over, 0, 1))
        outside = (np.abs(obs[:, 0]) > 2.4) | (np.abs(obs[:, 2]) > math.radians(12))
        np.testing.assert_array_equal(rows["terminated"], outside & ~over)
        np.testing.assert_array_equal(rows["truncated"], (steps == 500) & ~outside)
        over = rows["terminated"] | rows["truncated"]
        assert sorted(episodes) == sorted((float(n), int(n)) for n in steps[over])
        ends += over.sum()
        assert over[0] == (turn == 499)
    assert ends > 10


def test_a_seed_begins_anew_and_what_it_does_not_have_is_refused(envs: EnvClient) -> None:
    first = envs.reset(seed=7)["obs"]
    assert not np.array_equal(envs.reset()["obs"], first)
    np.testing.assert_array_equal(envs.reset(seed=[7, 8, 9, 10, 11])["obs"], first)
    for asked in ({"options": {}}, {"mask": np.ones(5, bool)}, {"seed": [1]}):
        with pytest.raises(Refused):
            envs.reset(**asked)
    assert envs.step(np.zeros(5))[0]["reward"].all()
