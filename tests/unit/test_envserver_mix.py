"""Environments of unequal sizes as equals, in a mix or of one run: odds, paddings, masks, and refusals."""

import json
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space

from zerobeast.common.errors import EnvError, WrongInterface
from zerobeast.common.wire import EnvSpec
from zerobeast.services.envserver.backend import backend_at, reference_for
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.mix import Mixture
from zerobeast.services.envserver.odds import LEVELS
from zerobeast.services.envserver.padding import Padding, common_padding, sizes_of
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.testing.sessions import session

SMALL, LARGE, PLAIN, MASKED, OLD = (f"{__name__}:{name}" for name in ("Small", "Large", "Plain", "Masked", "Old"))
LIST, PARTS = ",".join("abcdefghijk"), ("MinAtar/Breakout-v1", "x.py:B")


class Small(gymnasium.Env[np.ndarray, int]):
    """Episodes of one step. The observation is a random number, and the second of two choices is masked."""

    size, action_space = 1, Discrete(2, start=5)

    def __init__(self) -> None:
        self.observation_space: Space[Any] = Box(0, 255, (self.size,), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._seen(), {"action_mask": [True, False]}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._seen(), float(action), True, False, {"action_mask": [True, False]}

    def _seen(self) -> np.ndarray:
        return self.np_random.integers(1, 255, self.size).astype(np.uint8)


class Large(Small):
    """Larger, and without masks."""

    size, action_space = 3, Discrete(4)

    def reset(self, **given: Any) -> tuple[np.ndarray, dict]:
        return super().reset(**given)[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return (*super().step(action)[:-1], {})


class Plain(gymnasium.Env[int, int]):
    """Episodes of one step with a reward of the action. The observation is the second of two."""

    action_space: Space[Any] = Discrete(3)
    start, info = 0, dict[str, Any]()

    def __init__(self) -> None:
        self.observation_space = Discrete(2, start=self.start)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        return self.start + 1, self.info

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        return self.start + 1, float(action), True, False, self.info


class Masked(Plain):
    """With a mask that allows the last choice, under a name of its own, and observations that count from 10."""

    metadata = {"action_mask": "legal"}  # noqa: RUF012  # gymnasium's declaration
    start, info = 10, {"legal": [0, 0, 1]}


class Old(Plain):
    """With the interface of gym before 0.26."""

    def reset(self) -> int:  # type: ignore[override]
        return 1


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("zipf(a,b,c)", np.array([6, 3, 2]) / 11),
        ("zipf(a,b; 2 )", [0.8, 0.2]),
        ("uniform(a/x,b/y)", [0.5, 0.5]),
        ("only(a,b;2)", [0.0, 1.0]),
        ("rare(a,b,c)", [0.0, 0.0, 1.0]),  # one at least
        (f"rare({LIST})", [0.0] * 9 + [0.5] * 2),  # never more than a fifth
    ],
)
def test_environments_are_drawn_by_their_ranks(env_id: str, expected: Any) -> None:
    assert np.allclose(Mixture.parse(env_id).probabilities, expected, atol=1e-12)


def test_levels_are_the_same_list_under_each_law() -> None:
    for level in LEVELS:
        env_id = f"{level}(MinAtar/Breakout-v1,x.py:B{';2' if level == 'zipf' else ''})"
        backend = backend_at(reference_for(env_id), env_id)
        whole = {name: f"{name}(MinAtar/Breakout-v1,x.py:B)" for name in LEVELS}
        alone = {each: f"only({','.join(PARTS)};{rank})" for rank, each in enumerate(PARTS, 1)}
        assert backend.levels(env_id) == whole | alone | {level: env_id}


def test_levels_are_drawn_as_often_as_their_law_says_and_by_the_seed() -> None:
    def played(seed: int) -> list[tuple[int, list[int]]]:
        env = make_env(f"zipf({SMALL},{LARGE})", {})
        firsts = [env.reset(seed=None if episode else seed)[0].tolist() for episode in range(600)]
        return [(int(first[1:] != [0, 0]), first) for first in firsts]

    episodes = played(3)
    assert episodes == played(3) != played(4)
    share = np.mean([level for level, _ in episodes])
    assert abs(share - 1 / 3) < 4 * np.sqrt(2 / 9 / len(episodes))


@pytest.mark.parametrize(("ids", "key"), [((PLAIN, MASKED), ""), ((MASKED, PLAIN), "legal")])
def test_each_environment_has_its_own_mask_under_its_own_name(ids: tuple[str, str], key: str) -> None:
    with session(f"uniform({','.join(ids)})", {"action_mask": key}, envs=2) as env:
        rows = [env.reset(), *(env.step(np.full(2, 2)) for _ in range(30))]
        masks = {tuple(mask) for each in rows for mask in each["action_mask"].tolist()}
        assert masks == {(True, True, True), (False, False, True)}
        assert env.env.errors == 0
        assert all((each["obs"] == 1).all() for each in rows), "each counts from its own start"


def test_an_environment_of_the_old_interface_is_refused_at_once_and_equal_spaces_need_no_mask() -> None:
    with session(f"rare({PLAIN},{OLD})", {}, envs=1) as env, pytest.raises(WrongInterface, match=f"'{OLD}'"):
        env.reset()
    assert env.env.spec.action_mask is False


@pytest.mark.parametrize(
    ("env_id", "named"),
    [
        *((wrong, "expected") for wrong in ("zipf(A-v0)B", "rare()", "only(A-v0)", "zipf(A-v0,A-v0)")),
        *((f"zipf(A-v0;{wrong})", f"exponent '{wrong}'") for wrong in ("", "-1", "nan")),
        ("only(A-v0;2)", "rank '2'"),
        ("zipf(A-v0,rare(B-v0,C-v0))", "mixes"),
        ("zipf(CartPole-v1,Pendulum-v1)", "Pendulum-v1: action.kind"),
        ("zipf(ALE/Pong-v5,CartPole-v1)", "'ALE/Pong-v5'"),
        ("zipf(No-v0)", "'No-v0'"),
    ],
)
def test_wrong_ids_are_refused(env_id: str, named: str) -> None:
    with pytest.raises(EnvError, match=named):
        make_env(env_id, {})


def spec(obs: Space[Any], actions: Space[Any], **more: int) -> EnvSpec:
    return env_spec("Any-v0", obs, actions, **more)


def test_a_smaller_observation_is_in_the_corner_and_its_own_mask_within_the_larger_one() -> None:
    with session(SMALL, {"action_mask": "action_mask", "pad_obs": [3], "pad_actions": 4}, envs=2) as env:
        for rows in (env.reset(), env.step(np.array([0, 0])), env.reset(only=np.array([True, False]))):
            assert rows["action_mask"].tolist() == [[True, False, False, False]] * 2
            assert (rows["obs"].astype(bool) == [True, False, False]).all()
            assert (rows["reward"] == 5 * rows["terminated"]).all(), "choices count from where its own space starts"
        with pytest.raises(EnvError, match="environment 1 is 3"):  # a choice that only padding has
            env.step(np.array([0, 3]))


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
def test_the_one_that_is_unlike_the_others_is_named(spaces: list[tuple[Space[Any], Space[Any]]], odd_one: int) -> None:
    with pytest.raises(EnvError, match=f"^env.id {odd_one}: "):
        common_padding([env_spec(str(i), *each) for i, each in enumerate(spaces)])
