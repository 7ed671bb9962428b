"""The return and length of an episode are those that a wrapper inside the environment has recorded, if there is one."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.wrappers import vector

from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire.episodes import ends_of
from zerobeast.playing.play import EpisodeCounter
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.mix import Mix
from zerobeast.services.envserver.numbers import Numbered
from zerobeast.services.envserver.shard import Shard
from zerobeast.services.envserver.vector import EpisodeTracker


class Talkative(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes rewards, and has more numbers in its infos than are reported of an episode."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        return obs, -1.0, terminated, truncated, {f"number{i}": i for i in range(50)} | info


class Impostor(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has something else under the name of the record."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return *self.env.step(action)[:4], {"episode": {"r": 7.0, "l": 0}}


def entries_of(env: InlineEnvs, steps: int) -> list[list[Any]]:
    """Return and length in each entry, of all steps."""
    env.reset(seed=1)
    found: list[list[Any]] = []
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, np.int64))
        found += [entry[:2] for entry in env.episodes]
    return found


def test_returns_are_those_of_the_recorder_whatever_is_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    native = vector.TransformReward(vector.RecordEpisodeStatistics(inner), lambda reward: reward * 0 - 1)
    monkeypatch.setattr(gymnasium, "make_vec", lambda *_args, **_kwargs: native)
    recorded = Numbered(lambda: Talkative(wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))))
    impostor = Numbered(lambda: Impostor(gymnasium.make("CartPole-v1")))
    of_shards = [Shard("CartPole-v1", make, 2, 1) for make in (recorded, impostor)]
    for env in (*of_shards, NativeVectorEnv(EnvConfig(id="CartPole-v1"), 3, 1)):
        found = entries_of(env, 40)
        assert len(found) > 3
        assert all(value == length > 5 for value, length in found), "a reward of 1 for each step"


class Game(gymnasium.Env[Any, Any]):
    """Three lives of two steps, with 4 points each."""

    observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, **_given: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.steps, 2.0, self.steps == 6, False, {}


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life, and plays on, as Stable-Baselines3's EpisodicLifeEnv does."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return (self.unwrapped.steps, {}) if self.unwrapped.steps % 6 else self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, *rest = self.env.step(action)
        return obs, reward, terminated or self.unwrapped.steps % 2 == 0, *rest


class Monitor(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records as Stable-Baselines3's does: every episode in a list."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.episode_returns, self.episode_lengths = list[float](), list[int]()
        self.rewards = list[float]()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.rewards.append(reward)
        if terminated or truncated:
            self.episode_returns.append(sum(self.rewards))
            self.episode_lengths.append(len(self.rewards))
            info, self.rewards = {"episode": {"r": sum(self.rewards), "l": len(self.rewards), "t": 1.0}}, []
        return obs, reward, terminated, truncated, info


class Itself(Game):
    """Records by itself, without a wrapper."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *rest, terminated, truncated, info = super().step(action)
        return *rest, terminated, truncated, {"episode": {"r": 12.0, "l": 6}} if terminated else info


def standard() -> Any:
    return Lives(wrappers.RecordEpisodeStatistics(Game()))


def plainly_monitored() -> Any:
    return Monitor(Game())


@pytest.mark.parametrize(
    ("make", "steps", "expected"),
    [
        *((make, 18, [[], [], [12.0, 6]] * 2) for make in (standard, lambda: Lives(Monitor(Game())))),  # from the first
        *(
            (lambda kind=kind: wrappers.TimeLimit(kind(Game()), 4), 10, [[8.0, 4]] * 2)  # a limit outside of it
            for kind in (wrappers.RecordEpisodeStatistics, Monitor)
        ),
        (lambda: Lives(Itself()), 18, [[4.0, 2], [4.0, 2], [12.0, 2], [], [], [12.0, 6]]),  # from its first record on
        (lambda: wrappers.RecordEpisodeStatistics(Game(), stats_key="mine"), 14, [[12.0, 6]] * 2),
    ],
)
def test_a_lost_life_is_no_episode_and_a_row_that_opens_one_is_no_step(
    make: Callable[[], Any], steps: int, expected: list[list[float]]
) -> None:
    assert entries_of(Shard("Game", Numbered(make), 1, 1), steps) == expected


@pytest.mark.parametrize("recording", [standard, lambda: Lives(Itself())])
def test_environments_that_record_leave_others_in_the_statistics(recording: Callable[[], Any]) -> None:
    both = [recording, Game]
    env = Shard("Game", Numbered(lambda: both.pop(0)()), 2, 1)
    entries_of(env, 8)  # a game of the first, in three parts
    found = []
    for _ in range(18):
        env.step(np.zeros(2, np.int64))
        found += [entry[:2] for entry in env.episodes if entry]
    assert found == [[12.0, 6]] * 4, "two games of each"
    mix = f"uniform({__name__}:plainly_monitored,{__name__}:Game)"
    assert entries_of(Shard(mix, Numbered(lambda: Mix(mix, {})), 1, 1), 7 * 20) == [[12.0, 6]] * 20


def test_an_evaluation_counts_whole_games_as_training_does() -> None:
    envs = [Shard("Game", Numbered(make), 1, 1) for make in (standard, Game, lambda: Lives(Monitor(Game())))]
    counter = EpisodeCounter(6, 3, max_steps=50)
    for delay, env in enumerate(envs):  # so that ends of whole games and of lives coincide
        entries_of(env, 2 * delay)
    while not counter.complete:
        for env in envs:
            env.step(np.zeros(1, np.int64))
        refused: list[Any] = []
        ends = ends_of([entry for env in envs for entry in env.episodes], refused.append)
        counter.add(np.concatenate([env.rows for env in envs]), ends)
        assert not refused
    assert [episode[:2] for episode in counter.episodes] == [(12.0, 6)] * 6


def test_an_episode_counts_its_unclipped_rewards_and_its_agent_steps() -> None:
    tracker, no, first = EpisodeTracker(2), np.array([False, False]), np.array([True, False])
    assert tracker.update(np.array([2.0**24, 1.0], np.float32), no, no) == []
    assert tracker.update(np.array([1.0, 1.0], np.float32), no, first) == [[2.0**24 + 1, 2]], "float32 would lose the 1"
    assert tracker.update(np.array([0.0, 1.0]), first, ~first) == [[3.0, 3]]
    assert tracker.update(np.array([5.0, 0.0]), ~first, first) == [[5.0, 1]], "a void row is no step"
    tracker.update(np.array([1.0, 2.0]), no, no)
    tracker.forget(first)
    assert tracker.update(np.array([1.0, 2.0]), no, ~no) == [[1.0, 1], [4.0, 2]]
    tracker.update(np.array([1.0, 2.0]), no, no)
    tracker.forget(slice(None))
    assert tracker.update(np.array([0.5, 0.5]), no, ~no) == [[0.5, 1], [0.5, 1]]
