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

from tests.build.envs import COUNTER, STRANGE
from tests.build.odd import ODD
from zerobeast.common.errors import EnvError, WrongInterface
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire.checks import illegal
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


def counters(num_envs: int = 2, seed: int | None = 3, **kwargs: Any) -> Shard:
    shard = shard_of(COUNTER, kwargs, num_envs, seed)
    shard.reset()
    return shard


def test_environment_i_is_seeded_with_seed_plus_i_at_its_first_reset_only() -> None:
    shard = counters(3)
    assert shard.rows["obs"].tolist() == [[0, 3], [0, 4], [0, 5]]
    shard.reset()
    assert shard.rows["obs"].tolist() == [[0, -1], [0, -1], [0, -1]]


def test_choices_are_counted_from_zero_whatever_the_space_does() -> None:
    shard = counters()
    shard.step(np.array([0, 9]))
    assert shard.rows["reward"].tolist() == [0.0, 9.0]


def test_an_environment_that_raises_is_made_anew_and_its_next_row_is_first() -> None:
    shard = counters(raise_at=2)
    shard.step(np.array([1, 1]))
    assert shard.failures == []
    shard.step(np.array([1, 1]))
    assert [index for index, _ in shard.failures] == [0, 1]
    assert "RuntimeError: this environment raises on purpose" in shard.failures[0][1]
    assert shard.rows["first"].all()
    assert shard.rows["obs"].tolist() == [[0, -1], [0, -1]]
    assert not shard.rows["reward"].any()
    shard.step(np.array([1, 1]))
    assert not shard.rows["first"].any()


def test_an_environment_that_raises_at_every_step_is_given_up_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 0.0)
    shard = counters(1, raise_at=1)
    for _ in range(MAX_FAILURES - 1):
        shard.step(np.array([0]))
    told = r"RuntimeError: this environment raises on purpose \(.*envs.py:\d+\)$"
    with pytest.raises(EnvError, match=f"failed {MAX_FAILURES} times in a row, the last time with {told}"):
        shard.step(np.array([0]))
    shard = shard_of(ODD, {"at": -1, "answer": ["nan", 0.0]}, 1, None, failed=[MAX_FAILURES - 1])
    shard.reset()
    with pytest.raises(EnvError, match=f"failed {MAX_FAILURES} times in a row, the last time with an observation is"):
        shard.step(np.array([0]))


def test_the_others_go_on_while_one_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, once, broken = 100.0, tmp_path / "once", tmp_path / "broken"
    shard = shard_of(ODD, {"at": 2, "deed": "raise", "once": str(once), "broken": str(broken)}, 3, seed=0)
    shard.reset()
    shard.step(np.zeros(3, np.int64))
    once.touch()
    broken.touch()
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda _s: pytest.fail("the others wait"))
    monkeypatch.setattr(module, "time", clock)
    for _ in range(20):
        shard.step(np.zeros(3, np.int64))
        assert shard.rows["first"].tolist() == [True, False, False]
        assert shard.rows["reward"].tolist() == [0, 1, 1]
    assert [i for i, _ in shard.failures] == [0, 0], "at once, and then not before its pause is over"
    broken.unlink()
    now += 0.11
    shard.step(np.zeros(3, np.int64))
    assert shard.rows["first"].tolist() == [True, False, False]
    shard.step(np.zeros(3, np.int64))
    assert not shard.rows["first"].any()
    assert not shard.worn


def test_a_terminal_observation_that_cannot_be_used_costs_neither_the_reward_nor_the_episode() -> None:
    shard = shard_of(ODD, {"at": 2, "answer": ["nan", 1.0], "reward": 7.0, "ends": True}, 1, seed=0)
    shard.reset()
    for _ in range(2):
        shard.step(np.array([0]))
    row = shard.rows[0]
    assert (row["reward"], row["terminated"], row["first"]) == (7.0, True, False)
    assert row["obs"].tolist() == [0, 0], "as before: nothing is learned from it"
    assert len(shard.failures) == 1, "and yet it is counted and logged"
    shard.step(np.array([0]))
    assert row["first"]


def reset_and_step(shard: Shard) -> None:
    shard.reset()
    shard.step(np.array([0]))


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
        (Old, {"first": np.zeros(2)}, None, "reset returned ndarray"),
        (Old, {"first": (0.0, 0.0)}, None, "reset returned tuple of 2"),
        (Old, {}, None, "step returned tuple of 4"),
        (Old, {"then": None}, None, "step returned NoneType"),
        (Old, {}, 10, r"not enough values to unpack \(expected 5, got 4\)"),
        (Older, {}, None, r"Older.reset\(\) got an unexpected keyword argument 'seed'"),
    ],
)
def test_methods_that_are_not_gymnasiums_are_refused_at_once_with_what_they_must_return(
    kind: type[Old], kwargs: dict[str, Any], steps: int | None, came: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Old-v0", kind, max_episode_steps=steps)
    monkeypatch.setitem(gymnasium.registry, "Old-v0", spec)
    shard = shard_of("Old-v0", kwargs, 1, 0)
    wanted = r"\(observation, info\) and step\(action\) \(observation, reward, terminated, truncated, info\), but "
    with pytest.raises(WrongInterface, match=wanted + came):
        reset_and_step(shard)
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
    ("kwargs", "complaint"),
    [
        ({"reward": np.zeros(3)}, r"a reward has shape \[3\], expected a number"),
        ({"reward": "high"}, "a reward is 'high', expected a number"),
        ({"answer": [0.0, 1.0, 2.0]}, r"an observation has shape \[3\], expected \[2\]"),
        ({"answer": "north"}, "an observation is .*'north'.* of type <U5, expected float32"),
    ],
)
def test_what_must_fail_again_is_not_tried_again(kwargs: dict[str, Any], complaint: str) -> None:
    shard = shard_of(ODD, {"at": 1, **kwargs}, 1, seed=0)
    shard.reset()
    with pytest.raises(WrongInterface, match=rf"^environment '{ODD}': {complaint}$"):
        shard.step(np.array([0]))
    assert len(shard.failures) == 1


def test_an_observation_of_another_shape_after_others_that_fit_costs_its_episode_and_is_never_stretched() -> None:
    shard = shard_of(ODD, {"at": 2, "answer": [0.0]}, 1, seed=0)
    shard.reset()
    for _ in range(2):
        shard.step(np.array([0]))
    assert "shape [1], expected [2]" in shard.failures[0][1]
    assert shard.rows["first"].all()


@pytest.mark.parametrize(
    ("obs", "complaint"),
    [
        ({"pos": [0, 0], "goal": [0, 0, 0]}, r"entry 'goal' of an observation has shape \[3\], expected \[2\]"),
        ({"pos": [0, 0]}, r"an observation is {'pos': \[0, 0\]}, without the entry 'goal' of observation_space"),
    ],
)
def test_a_misfit_of_several_parts_names_the_one_that_does_not_fit(obs: Any, complaint: str) -> None:
    env = Told(obs)
    shard = Shard("Told", Numbered(lambda: env), 1, 0)
    with pytest.raises(WrongInterface, match=f"^environment 'Told': {complaint}$"):
        shard.reset()


def test_an_observation_of_several_parts_arrives_as_fields() -> None:
    shard = shard_of(STRANGE, {"kind": "dict"}, 1, 0)
    shard.reset()
    shard.step(np.array([[0.1, -0.1]], np.float32))
    assert shard.failures == []
    assert {name: shard.rows["obs"][name][0].tolist() for name in ("a", "b")} == {"a": [0.5, -0.25], "b": 2}


@pytest.mark.parametrize(
    ("kind", "dtype", "obs"),
    [
        ("strided", "|u1", [[0, 6, 12, 18], [2, 8, 14, 20], [4, 10, 16, 22]]),
        ("discrete", "<i8", 4),
        ("bool", "|i1", [0b101]),
    ],
)
def test_every_kind_of_observation_arrives_as_an_array_of_numbers(kind: str, dtype: str, obs: Any) -> None:
    shard = shard_of(STRANGE, {"kind": kind}, 1, 0)
    shard.reset()
    assert shard.spec.obs.dtype == dtype
    assert shard.rows["obs"][0].tolist() == obs
    shard.step(np.array([[0.1, -0.1]], np.float32))
    assert shard.failures == [], "a bound that float32 rounds up is still inside"
    assert shard.rows["obs"][0].tolist() == obs


def test_observations_that_would_not_fit_a_message_are_refused_before_memory_is_asked_for() -> None:
    spec = EnvSpec("Huge-v0", ArraySpace.box((4096, 4096), "|u1"), ArraySpace.discrete(2))
    assert len(rows_for(spec, 2)) == 2
    with pytest.raises(EnvError, match="4096 observations of 'Huge-v0' are 65536 MiB, expected at most 256"):
        rows_for(spec, 4096)


def refusal(env_id: str, **kwargs: Any) -> str:
    with pytest.raises(EnvError) as caught:
        shard_of(env_id, kwargs, 1, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_environment_that_cannot_be_made_is_refused_with_the_reason() -> None:
    assert "observation space Text" in refusal(STRANGE, kind="text")
    assert "unexpected keyword argument 'lenght'" in refusal(COUNTER, lenght=3)
    assert "No module named 'no_such_module'" in refusal("no_such_module:Counter-v0")
    assert "did you mean Counter-v0?" in refusal("tests.build.envs:Cuonter")
    assert "Did you mean: `Breakout`" in refusal("MinAtar/Brekout-v1")


def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**_: Any) -> gymnasium.Env:
        raise gymnasium.error.DependencyNotInstalled('Thing is not installed, run `pip install "gymnasium[thing]"`')

    monkeypatch.setitem(gymnasium.registry, "Thing-v0", gymnasium.envs.registration.EnvSpec("Thing-v0", make))
    assert 'pip install "gymnasium[thing]"' in refusal("Thing-v0")
    for name in [name for name in sys.modules if name.partition(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    assert "pip install 'zerobeast[minatar]'" in refusal("MinAtar/Breakout-v1")


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
    ("kwargs", "complaint"),
    [
        ({"answer": [np.nan, 0.0]}, "an observation is array([nan, 0.]), expected finite numbers"),
        ({"answer": [1e300, 0.0]}, "an observation is array([1.e+300, 0.e+000]), expected finite numbers"),
        ({"answer": [1.0]}, "an observation has shape [1], expected [2]"),
        ({"answer": ["a", "b"]}, "an observation is array(['a', 'b'], dtype='<U1') of type <U1, expected float32"),
        (
            {"answer": [None, 1.0]},
            "an observation is array([None, 1.0], dtype=object) of type object, expected float32",
        ),
        ({"answer": [[1.0], [1.0, 2.0]]}, "ValueError"),
        ({"reward": np.nan}, "a reward is nan, expected a finite float32"),
        ({"reward": -1e39}, "a reward is -1e+39, expected a finite float32"),
        ({"reward": [1.0, 2.0]}, "a reward is [1.0, 2.0], expected a number"),
        ({"dtype": "uint8", "answer": [0.5, 1.0]}, "an observation is array([0.5, 1. ]), expected values of uint8"),
        ({"dtype": "uint8", "answer": [-1, 256]}, "an observation is array([ -1, 256]), expected values of uint8"),
        ({"dtype": "bool", "answer": [2, 0]}, "an observation is array([2, 0]), expected values of bool"),
        ({"dtype": "discrete", "answer": 7}, "an observation holds the choice 5, expected 0 to 4, counted from 0"),
        ({"dtype": "discrete", "answer": 1}, "an observation holds the choice -1, expected 0 to 4, counted from 0"),
        ({"dtype": "multi", "answer": [1, 8]}, "an observation holds the choice 5, expected 0 to 4, counted from 0"),
        ({"dtype": "binary", "answer": [0, 2]}, "an observation holds the choice 2, expected 0 to 1, counted from 0"),
    ],
)
def test_an_answer_that_no_policy_could_learn_from_is_a_failure_of_its_environment(
    kwargs: dict[str, Any], complaint: str
) -> None:
    shard = shard_of(ODD, {"at": 2, **kwargs}, 1, seed=0)
    shard.reset()
    shard.step(np.array([0]))
    assert shard.failures == []
    shard.step(np.array([0]))
    assert complaint in shard.failures[0][1]
    assert shard.rows["first"].all()
    assert np.isfinite(shard.rows["obs"]).all()
    assert illegal("obs", shard.rows["obs"], shard.spec.obs) is None
    assert np.isfinite(shard.rows["reward"]).all()


@pytest.mark.parametrize("answer", [[3, 4], [3.0, 4.0], [True, False], np.array([3, 4], np.uint8)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_an_answer_of_another_type_with_the_same_values_is_accepted(answer: Any, dtype: str) -> None:
    shard = shard_of(ODD, {"at": 1, "answer": answer, "dtype": dtype}, 1, seed=0)
    shard.reset()
    shard.step(np.array([0]))
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
