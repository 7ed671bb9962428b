"""The return and length of an episode are those that a wrapper inside the environment has recorded, if there is one."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.wrappers import vector

from zerobeast.common.settings import EnvConfig
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.numbers import Numbered
from zerobeast.services.envserver.shard import Shard


class Talkative(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has more numbers in its infos than are reported of an episode."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        return obs, -1.0, terminated, truncated, {f"number{i}": i for i in range(50)} | info


def episodes_of(env: InlineEnvs) -> list[list[Any]]:
    env.reset(seed=1)
    found = []
    while len(found) < 3:
        env.step(np.ones(env.num_envs, np.int64))
        found += env.episodes
    return found


def test_rewards_changed_outside_the_recorder_do_not_change_returns() -> None:
    def make() -> Any:
        return Talkative(wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1")))

    for value, length, _ in episodes_of(Shard("CartPole-v1", Numbered(make), 2, 1)):
        assert value == length > 5, "a reward of 1 for each step"


def test_the_same_holds_for_vector_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    env = vector.TransformReward(vector.RecordEpisodeStatistics(inner), lambda reward: reward * 0 - 1)
    monkeypatch.setattr(gymnasium, "make_vec", lambda *_args, **_kwargs: env)
    for value, length, _ in episodes_of(NativeVectorEnv(EnvConfig(id="CartPole-v1"), 3, 1)):
        assert value == length > 5


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode after every third step, too, and plays on."""

    steps = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        goes_on = self.steps > 0 and self.steps % 3 == 0
        return (self.last, {}) if goes_on else self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.last, reward, terminated, truncated, info = self.env.step(action)
        self.steps = 0 if terminated else self.steps + 1
        return self.last, reward, terminated or self.steps % 3 == 0, truncated, info


def test_an_end_without_a_record_is_no_episode_once_there_are_records() -> None:
    env = Shard(
        "CartPole-v1", Numbered(lambda: Lives(wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1")))), 1, 1
    )
    lengths = [(value, length) for value, length, *_ in episodes_of(env) + episodes_of(env)]
    whole = [each for each in lengths if each[0] > 3]
    assert len(whole) >= 3
    assert all(value == length for value, length in whole[1:]), "the first one began before the first record"
    assert lengths.index(whole[0]) == len(lengths) - len(whole), "lost lives, until then"


class Impostor(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has something else under the name of the record."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return *self.env.step(action)[:4], {"episode": {"r": 7.0, "l": 0}}


def test_an_entry_that_is_no_record_is_not_taken_for_one() -> None:
    make = Numbered(lambda: Impostor(gymnasium.make("CartPole-v1")))
    for value, length, _ in episodes_of(Shard("CartPole-v1", make, 1, 1)):
        assert value == length > 5
