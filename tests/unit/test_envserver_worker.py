"""A worker's environments without the process around them."""

import random
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.build.envs import COUNTER, ON_PURPOSE, STRANGE
from tests.build.odd import ODD
from zerobeast.common.errors import EnvError, WrongInterface
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire.checks import flaw, illegal
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.envserver import shard as module
from zerobeast.services.envserver.agents import shard as shard_like
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.numbers import Numbered
from zerobeast.services.envserver.shard import MAX_FAILURES, Shard
from zerobeast.services.envserver.vector import rows_for


def shard_of(env_id: str, kwargs: dict[str, Any], *args: Any, **settings: Any) -> Shard:
    return Shard(env_id, Numbered(partial(make_env, env_id, kwargs)), *args, **settings)


class Told(gymnasium.Env):
    """With a position and a goal, of which each observation is `obs`."""

    observation_space = gymnasium.spaces.Dict({name: gymnasium.spaces.Box(-1, 1, (2,)) for name in ("pos", "goal")})
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, obs: Any) -> None:
        self.obs = obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}


def zeros(shard: Shard, steps: int = 1) -> Shard:
    for _ in range(steps):
        shard.step(np.zeros(shard.num_envs, np.int64))
    return shard


def begin_and_step(shard: Shard) -> None:
    shard.reset()
    zeros(shard)


def odd(*, seed: int | None = 0, num_envs: int = 1, **kwargs: Any) -> Shard:
    shard = shard_of(ODD, kwargs, num_envs, seed)
    shard.reset()
    return shard


def test_an_environment_that_raises_at_every_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 0.0)
    shard = shard_of(COUNTER, {"raise_at": 1}, 1, None)
    shard.reset()
    zeros(shard, MAX_FAILURES - 1)
    with pytest.raises(EnvError, match=ON_PURPOSE):
        zeros(shard)
    shard = shard_of(ODD, {"at": -1, "answer": ["nan", 0.0]}, 1, None, failed=[MAX_FAILURES - 1])
    shard.reset()
    with pytest.raises(EnvError, match=str(MAX_FAILURES)):
        zeros(shard)


def test_the_others_go_on_while_one_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, once, broken = 100.0, tmp_path / "once", tmp_path / "broken"
    shard = zeros(odd(num_envs=3, at=2, deed="raise", once=str(once), broken=str(broken)))
    once.touch()
    broken.touch()
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda _s: pytest.fail("the others wait"))
    monkeypatch.setattr(module, "time", clock)
    for _ in range(20):
        zeros(shard)
        assert shard.rows["first"].tolist() == [True, False, False]
        assert shard.rows["reward"].tolist() == [0, 1, 1]
    assert [i for i, _ in shard.failures] == [0, 0], "at once, and then not before its pause is over"
    broken.unlink()
    now += 0.11
    assert zeros(shard).rows["first"].tolist() == [True, False, False]
    assert not zeros(shard).rows["first"].any()
    assert not shard.worn


def test_a_terminal_observation_that_cannot_be_used_costs_neither_the_reward_nor_the_episode() -> None:
    shard = zeros(odd(at=2, answer=["nan", 1.0], reward=7.0, ends=True), 2)
    row = shard.rows[0]
    assert (row["reward"], row["terminated"], row["first"]) == (7.0, True, False)
    assert row["obs"].tolist() == [0, 0], "as before: nothing is learned from it"
    assert len(shard.failures) == 1, "and yet it is counted and logged"
    assert zeros(shard).rows["first"].all()


class Old(gymnasium.Env):
    """An environment for gym before 0.26, or what else `answers` says."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: Any = ((0.0, 0.0), {}), then: Any = ((0.0, 0.0), 1.0, False, {})) -> None:
        self.first, self.then = first, then

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.first

    def step(self, action: int) -> Any:
        return self.then


class Older(Old):
    def reset(self) -> Any:  # type: ignore[override]
        return self.first


@pytest.mark.parametrize(
    ("kind", "kwargs", "steps", "came"),
    [
        (Old, {"first": np.zeros(2)}, None, "ndarray"),
        (Old, {"first": (0.0, 0.0)}, None, "tuple of 2"),
        (Old, {}, None, "tuple of 4"),
        (Old, {"then": None}, None, "NoneType"),
        (Old, {}, 10, "expected 5, got 4"),
        (Older, {}, None, "'seed'"),
    ],
)
def test_methods_that_are_not_gymnasiums_are_refused_at_once(
    kind: type[Old], kwargs: dict[str, Any], steps: int | None, came: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Old-v0", kind, max_episode_steps=steps)
    monkeypatch.setitem(gymnasium.registry, "Old-v0", spec)
    shard = shard_of("Old-v0", kwargs, 1, 0)
    with pytest.raises(WrongInterface, match=came):
        begin_and_step(shard)
    assert len(shard.failures) == 1


class Global(Told):
    """Draws from the generators of its process and its spaces."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))

    def __init__(self) -> None:
        self.action_space, self.observation_space = (gymnasium.spaces.Box(-1, 1, (n,)) for n in (1, 3))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.float32([random.random(), np.random.uniform(), self.observation_space.sample()[0]]), {}


def test_environments_that_draw_from_global_generators_and_spaces_repeat_with_the_seed() -> None:
    found = []
    for seed in (3, 3, 4):
        made = shard_like("Global", Global, 2, seed, config=EnvConfig(id="Global"))
        made.reset()
        found.append(made.rows["obs"].copy())
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).all()
    assert (found[0][0] != found[0][1]).all(), "the copies differ"


@pytest.mark.parametrize(
    "kwargs", [{"reward": np.zeros(3)}, {"reward": "high"}, {"answer": [0.0, 1.0, 2.0]}, {"answer": "north"}], ids=str
)
def test_what_must_fail_again_is_not_tried_again(kwargs: dict[str, Any]) -> None:
    shard = odd(at=1, **kwargs)
    with pytest.raises(WrongInterface, match=ODD):
        zeros(shard)
    assert len(shard.failures) == 1


@pytest.mark.parametrize("obs", [{"pos": [0, 0], "goal": [0, 0, 0]}, {"pos": [0, 0]}], ids=str)
def test_a_misfit_of_several_parts_names_the_one_that_does_not_fit(obs: Any) -> None:
    shard = Shard("Told", Numbered(lambda: Told(obs)), 1, 0)
    with pytest.raises(WrongInterface, match="entry 'goal'"):
        shard.reset()


@pytest.mark.parametrize(
    ("kind", "obs"),
    [
        ("strided", [[0, 6, 12, 18], [2, 8, 14, 20], [4, 10, 16, 22]]),
        ("discrete", 4),
        ("bool", [0b101]),
        ("dict", ([0.5, -0.25], 2)),
    ],
)
def test_every_kind_of_observation_arrives_as_numbers(kind: str, obs: Any) -> None:
    shard = shard_of(STRANGE, {"kind": kind}, 1, 0)
    shard.reset()
    for _ in range(2):
        seen = shard.rows["obs"][0]
        assert (tuple(seen[name].tolist() for name in "ab") if kind == "dict" else seen.tolist()) == obs
        shard.step(np.array([[0.1, -0.1]], np.float32))
        assert shard.failures == [], "a bound that float32 rounds up is still inside"


def test_observations_that_would_not_fit_a_message_are_refused_before_memory_is_asked_for() -> None:
    spec = EnvSpec("Huge-v0", ArraySpace.box((4096, 4096), "|u1"), ArraySpace.discrete(2))
    assert len(rows_for(spec, 2)) == 2
    with pytest.raises(EnvError, match="Huge-v0"):
        rows_for(spec, 4096)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        (STRANGE, {"kind": "text"}, "Text"),
        (COUNTER, {"lenght": 3}, "'lenght'"),
        (COUNTER.replace("Counter", "Cuonter"), {}, "Counter?"),
        ("MinAtar/Brekout-v1", {}, "`Breakout`"),
        ("Thing-v0", {}, 'pip install "gymnasium\\[thing\\]"'),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_with_the_reason(
    env_id: str, kwargs: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**_: Any) -> gymnasium.Env:
        raise gymnasium.error.DependencyNotInstalled('Thing is not installed, run `pip install "gymnasium[thing]"`')

    monkeypatch.setitem(gymnasium.registry, "Thing-v0", gymnasium.envs.registration.EnvSpec("Thing-v0", make))
    with pytest.raises(EnvError, match=named):
        shard_of(env_id, kwargs, 1, 0)


def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(EnvError, match=r"zerobeast\[minatar\]"):
        shard_of("MinAtar/Breakout-v1", {}, 1, 0)


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize(
    ("env_id", "actions"), [("MinAtar/Breakout", 3), ("MinAtar/Breakout-v1", 3), ("MinAtar/Breakout-v0", 6)]
)
def test_minatar_games_have_their_minimal_actions_unless_v0_is_asked_for(env_id: str, actions: int) -> None:
    env = make_env(env_id, {})
    assert env.action_space.n == actions
    env.close()


def test_retries_back_off_up_to_a_limit() -> None:
    waits = [module.backoff_s(failures) for failures in range(1, MAX_FAILURES)]
    assert waits == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2])


@pytest.mark.parametrize(
    "kwargs",
    [
        *({"answer": answer} for answer in ([np.nan, 0.0], [1e300, 0.0], [1.0], ["a", "b"], [None, 1.0])),
        {"answer": [[1.0], [1.0, 2.0]]},
        *({"reward": reward} for reward in (np.nan, -1e39, [1.0, 2.0])),
        *({"dtype": "uint8", "answer": answer} for answer in ([0.5, 1.0], [-1, 256])),
        {"dtype": "bool", "answer": [2, 0]},
        *({"dtype": "discrete", "answer": answer} for answer in (7, 1)),
        {"dtype": "multi", "answer": [1, 8]},
        {"dtype": "binary", "answer": [0, 2]},
    ],
    ids=str,
)
def test_an_answer_that_no_policy_could_learn_from_is_a_failure_of_its_environment(kwargs: dict[str, Any]) -> None:
    shard = zeros(odd(at=2, **kwargs))
    assert shard.failures == []
    assert len(zeros(shard).failures) == 1, "after one that has fitted, it costs an episode"
    assert shard.rows["first"].all()
    assert flaw(shard.rows) is None
    assert illegal("obs", shard.rows["obs"], shard.spec.obs) is None


@pytest.mark.parametrize("answer", [[3, 4], [3.0, 4.0], [True, False], np.array([3, 4], np.uint8)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_an_answer_of_another_type_with_the_same_values_is_accepted(answer: Any, dtype: str) -> None:
    shard = zeros(odd(at=1, answer=answer, dtype=dtype))
    assert shard.failures == []
    assert shard.rows["obs"][0].tolist() == [float(value) for value in answer]


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
