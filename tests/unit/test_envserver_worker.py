"""A worker's environments without the process around them, and the returns and lengths of their episodes."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import vector

from tests.build.envs import COUNTER, ON_PURPOSE
from tests.build.odd import ODD
from zerobeast.common.errors import EnvError, WrongInterface
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.checks import find_flaw, find_illegal
from zerobeast.common.wire.episodes import ends_of
from zerobeast.playing.play import EpisodeCounter
from zerobeast.services.envserver import shard as module
from zerobeast.services.envserver.agents import make_shard as shard_like
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.mix import Mix
from zerobeast.services.envserver.numbers import NumberedEnvs
from zerobeast.services.envserver.shard import MAX_FAILURES, Shard
from zerobeast.services.envserver.vector import EpisodeTracker, rows_for


class Given(gymnasium.Env[Any, Any]):
    """Its reset and its steps return what it is given, such as what environments for gym before 0.26 return."""

    action_space = Discrete(2)

    def __init__(self, first: Any = ((0.0, 0.0), {}), then: Any = None, space: Any = None) -> None:
        self.observation_space = space or Box(0, 1, (2,))
        self.first, self.then = first, then

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.first

    def step(self, action: int) -> Any:
        return self.then


class Seedless(Given):
    def reset(self) -> Any:  # type: ignore[override]
        return self.first


class Global(Given):
    """Draws from the generators of its process and its spaces."""

    def __init__(self) -> None:
        self.action_space, self.observation_space = (Box(-1, 1, (n,)) for n in (1, 3))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.float32([random.random(), np.random.uniform(), self.observation_space.sample()[0]]), {}


def stepped(shard: Shard, steps: int = 1) -> Shard:
    for _ in range(steps):
        shard.step(np.zeros(shard.num_envs, np.int64))
    return shard


def made(env_id: str, num_envs: int = 1, failed: Sequence[int] = (), **kwargs: Any) -> Shard:
    shard = Shard(env_id, NumberedEnvs(partial(make_env, env_id, kwargs)), num_envs, 0, failed=failed)
    shard.reset()
    return shard


def test_an_environment_that_raises_at_every_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 0.0)
    shard = stepped(made(COUNTER, raise_at=1), MAX_FAILURES - 1)
    with pytest.raises(EnvError, match=ON_PURPOSE):
        stepped(shard)
    shard = made(ODD, failed=[MAX_FAILURES - 1], at=-1, answer=["nan", 0.0])
    with pytest.raises(EnvError, match=str(MAX_FAILURES)):
        stepped(shard)


def test_the_others_go_on_while_one_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, once, broken = 100.0, tmp_path / "once", tmp_path / "broken"
    shard = stepped(made(ODD, 3, at=2, deed="raise", once=str(once), broken=str(broken)))
    once.touch()
    broken.touch()
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda _s: pytest.fail("the others wait"))
    monkeypatch.setattr(module, "time", clock)
    for _ in range(20):
        stepped(shard)
        assert shard.rows["first"].tolist() == [True, False, False]
        assert shard.rows["reward"].tolist() == [0, 1, 1]
    assert [i for i, _ in shard.failures] == [0, 0], "at once, and then not before its pause is over"
    broken.unlink()
    now += 0.11
    assert stepped(shard).rows["first"].tolist() == [True, False, False]
    assert not stepped(shard).rows["first"].any()
    assert not shard.worn


def test_a_terminal_observation_that_cannot_be_used_costs_neither_the_reward_nor_the_episode() -> None:
    shard = stepped(made(ODD, at=2, answer=["nan", 1.0], reward=7.0, ends=True), 2)
    row = shard.rows[0]
    assert (row["reward"], row["terminated"], row["first"]) == (7.0, True, False)
    assert row["obs"].tolist() == [0, 0], "as before: nothing is learned from it"
    assert len(shard.failures) == 1, "and yet it is counted and logged"
    assert stepped(shard).rows["first"].all()


@pytest.mark.parametrize(
    ("make", "came"),
    [
        (lambda: Given(first=np.zeros(2)), "ndarray"),
        (lambda: Given(then=(np.zeros(2), 1.0, False, {})), "tuple of 4"),
        (lambda: gymnasium.wrappers.TimeLimit(Given(then=(np.zeros(2), 1.0, False, {})), 10), "expected 5, got 4"),
        (Seedless, "'seed'"),
        (lambda: Given(({"goal": [0, 0, 0]}, {}), space=Dict(goal=Box(-1, 1, (2,)))), "entry 'goal'"),
        (lambda: make_env(ODD, {"at": 1, "reward": np.zeros(3)}), ODD),
        (lambda: make_env(ODD, {"at": 1, "answer": [0.0, 1.0, 2.0]}), ODD),
        (lambda: make_env(ODD, {"at": 1, "answer": "north"}), ODD),
    ],
)
def test_what_must_fail_again_is_refused_at_once(make: Any, came: str) -> None:
    shard = Shard(ODD, NumberedEnvs(make), 1, 0)

    def begin_and_step() -> None:
        shard.reset()
        stepped(shard)

    with pytest.raises(WrongInterface, match=came):
        begin_and_step()
    assert len(shard.failures) == 1


def test_environments_that_draw_from_global_generators_and_spaces_repeat_with_the_seed() -> None:
    found = []
    for seed in (3, 3, 4):
        shard = shard_like("Global", Global, 2, seed, config=EnvConfig(id="Global"))
        shard.reset()
        found.append(shard.rows["obs"].copy())
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).all()
    assert (found[0][0] != found[0][1]).all(), "the copies differ"


def test_observations_that_would_not_fit_a_message_are_refused_before_memory_is_asked_for() -> None:
    spec = EnvSpec("Huge-v0", ArraySpace.box((4096, 4096), "|u1"), ArraySpace.discrete(2))
    assert len(rows_for(spec, 2)) == 2
    with pytest.raises(EnvError, match="Huge-v0"):
        rows_for(spec, 4096)


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize(("version", "actions"), [("", 3), ("-v1", 3), ("-v0", 6)])
def test_minatar_games_have_their_minimal_actions_unless_v0_is_asked_for(version: str, actions: int) -> None:
    assert make_env(f"MinAtar/Breakout{version}", {}).action_space.n == actions


@pytest.mark.parametrize(
    "kwargs",
    [
        *({"answer": answer} for answer in ([np.nan, 0.0], [1e300, 0.0], [1.0], ["a", "b"], [[1.0], [1.0, 2.0]])),
        *({"reward": reward} for reward in (np.nan, -1e39, [1.0, 2.0])),
        *({"dtype": "uint8", "answer": answer} for answer in ([0.5, 1.0], [-1, 256])),
        {"dtype": "bool", "answer": [2, 0]},
        *({"dtype": "discrete", "answer": answer} for answer in (7, 1)),
        {"dtype": "multi", "answer": [1, 8]},
    ],
    ids=str,
)
def test_an_answer_that_no_policy_could_learn_from_is_a_failure_of_its_environment(kwargs: dict[str, Any]) -> None:
    shard = stepped(made(ODD, at=2, **kwargs))
    assert shard.failures == []
    assert len(stepped(shard).failures) == 1, "after one that has fitted, it costs an episode"
    assert shard.rows["first"].all()
    assert find_flaw(shard.rows) is None
    assert find_illegal("obs", shard.rows["obs"], shard.spec.obs) is None


@pytest.mark.parametrize("answer", [[3.0, 4.0], [True, False]])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_an_answer_of_another_type_with_the_same_values_is_accepted(answer: Any, dtype: str) -> None:
    shard = stepped(made(ODD, at=1, answer=answer, dtype=dtype))
    assert shard.failures == []
    assert shard.rows["obs"][0].tolist() == answer


def test_mujoco_repeats_no_warning_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where MuJoCo would write
    make_env("HalfCheetah-v5", {}).close()
    capsys.readouterr()  # discards warnings about this model
    warn = mujoco.get_mju_user_warning()
    for _ in range(2):
        warn("the joints creak")
        make_env("HalfCheetah-v5", {}).close()
    assert capsys.readouterr().err == "MuJoCo: the joints creak\n"
    assert list(tmp_path.iterdir()) == []


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
    recorded = NumberedEnvs(lambda: Talkative(wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))))
    impostor = NumberedEnvs(lambda: Impostor(gymnasium.make("CartPole-v1")))
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
    assert entries_of(Shard("Game", NumberedEnvs(make), 1, 1), steps) == expected


@pytest.mark.parametrize("recording", [standard, lambda: Lives(Itself())])
def test_environments_that_record_leave_others_in_the_statistics(recording: Callable[[], Any]) -> None:
    both = [recording, Game]
    env = Shard("Game", NumberedEnvs(lambda: both.pop(0)()), 2, 1)
    entries_of(env, 8)  # a game of the first, in three parts
    found = []
    for _ in range(18):
        env.step(np.zeros(2, np.int64))
        found += [entry[:2] for entry in env.episodes if entry]
    assert found == [[12.0, 6]] * 4, "two games of each"
    mix = f"uniform({__name__}:plainly_monitored,{__name__}:Game)"
    assert entries_of(Shard(mix, NumberedEnvs(lambda: Mix(mix, {})), 1, 1), 7 * 20) == [[12.0, 6]] * 20


def test_an_evaluation_counts_whole_games_as_training_does() -> None:
    envs = [Shard("Game", NumberedEnvs(make), 1, 1) for make in (standard, Game, lambda: Lives(Monitor(Game())))]
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
