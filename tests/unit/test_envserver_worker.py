"""A worker's environments without the process around them."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from tests.build.envs import COUNTER, ON_PURPOSE
from tests.build.odd import ODD
from zerobeast.common.errors import EnvError, WrongInterface
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.checks import flaw, illegal
from zerobeast.services.envserver import shard as module
from zerobeast.services.envserver.agents import shard as shard_like
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.numbers import Numbered
from zerobeast.services.envserver.shard import MAX_FAILURES, Shard
from zerobeast.services.envserver.vector import rows_for


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
    shard = Shard(env_id, Numbered(partial(make_env, env_id, kwargs)), num_envs, 0, failed=failed)
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
    shard = Shard(ODD, Numbered(make), 1, 0)

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
    assert flaw(shard.rows) is None
    assert illegal("obs", shard.rows["obs"], shard.spec.obs) is None


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
