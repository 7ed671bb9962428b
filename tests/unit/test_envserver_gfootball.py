"""Google Research Football by the package gfootball, which is built from source: most of these need it."""

import sys
from typing import Any

import numpy as np
import pytest

from tests.helpers import wait_until
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire.bits import unpacked_rows
from zerobeast.services.envserver import gfootball
from zerobeast.services.envserver.catalogue import make_env, make_vector_env
from zerobeast.services.envserver.gfootball import CONTROLLED, Match
from zerobeast.services.envserver.vector import VectorEnv

EMPTY_GOAL = "gfootball/academy_empty_goal"
LEFT, RIGHT = (CONTROLLED.format(team) for team in ("left", "right"))
VECTORS = {"representation": "simple115v2"}
IDLE, RUN, SHOT = 0, 5, 12


@pytest.fixture
def package() -> None:
    pytest.importorskip("gfootball", reason="gfootball is built from source")


def match(env_id: str = EMPTY_GOAL, **kwargs: Any) -> Match:
    found = make_env(env_id, VECTORS | kwargs, several=True)
    assert isinstance(found, Match)
    return found


def session(env_id: str, agents: int, **kwargs: Any) -> VectorEnv:
    env = make_vector_env(
        EnvConfig(id=env_id, kwargs=kwargs, agents=agents), agents, 0, EnvServerConfig(in_process=True)
    )
    wait_until(env.collect)
    env.reset()
    wait_until(env.collect)
    return env


def stepped(env: VectorEnv, actions: Any) -> VectorEnv:
    env.step(np.asarray(actions, np.int64))
    wait_until(env.collect)
    return env


@pytest.mark.parametrize(
    ("env_id", "kwargs", "sentence"),
    [
        ("gfootball/academy_emty_goal", {}, f"did you mean {EMPTY_GOAL}"),
        ("gfootball/golf", {}, "expected gfootball/11_vs_11_competition, "),
        (EMPTY_GOAL, {"players": 2}, f"'players' is not for {EMPTY_GOAL}, expected any of channel_dimensions, "),
        (EMPTY_GOAL, {"rewards": "checkpoints"}, "rewards is 'checkpoints', expected scoring or scoring,checkpoints"),
        (EMPTY_GOAL, {"representation": "raw"}, "representation is 'raw', expected extracted or simple115v2 or pixels"),
    ],
)
def test_what_the_package_does_not_have_is_refused_without_it(
    env_id: str, kwargs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EnvError, match=sentence):
        match(env_id, **kwargs)


def test_without_the_package_the_id_of_envpool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gfootball.env.config", None)
    with pytest.raises(EnvError, match="built from source, cannot be imported"):
        match()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "sentence"),
    [
        (EMPTY_GOAL, {LEFT: 3}, f"{LEFT} is 3, expected 0 to 2 in {EMPTY_GOAL}"),
        (EMPTY_GOAL, {LEFT: 0}, f"no player of {EMPTY_GOAL} is controlled"),
        (EMPTY_GOAL, {RIGHT: 1, "representation": "pixels"}, "'pixels', which players on the right lack"),
        ("gfootball/5_vs_5", {LEFT: "2"}, f"{LEFT} is '2', expected 0 to 4"),
    ],
)
@pytest.mark.usefixtures("package")
def test_players_that_a_scenario_does_not_have_are_refused(env_id: str, kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        match(env_id, **kwargs)


@pytest.mark.usefixtures("package")
def test_a_goal_brings_what_is_left_of_the_ten_checkpoints() -> None:
    env = session(EMPTY_GOAL, 1, rewards="scoring,checkpoints")
    assert (env.spec.obs.arrays[0].dtype, env.spec.obs.arrays[0].shape) == ("|b1", (72, 96, 16))
    assert unpacked_rows(env.rows, env.spec)["obs"].any((1, 2)).all(), "each plane has a point"
    checkpoints = sum(stepped(env, [RUN]).rows["reward"].item() for _ in range(20))
    assert checkpoints == pytest.approx(round(checkpoints, 1))
    assert 0 < checkpoints < 1
    while not env.episodes:
        stepped(env, [SHOT])
    total, _, found = env.episodes[0]
    assert total == pytest.approx(2)
    assert found == {"goals": 1, "goals_conceded": 0, "goal_difference": 1, "is_success": 1}


@pytest.mark.usefixtures("package")
def test_players_of_both_teams_are_agents_that_see_the_pitch_from_their_side() -> None:
    env = session(EMPTY_GOAL, 2, **VECTORS, **{RIGHT: 1})
    np.testing.assert_allclose(env.rows["obs"][1, 88:90], -env.rows["obs"][0, 88:90], err_msg="where the ball is")
    for t in range(80):
        if not stepped(env, [RUN if t < 20 else SHOT, IDLE]).episodes:
            continue
        (left, _, of_left), (right, _, of_right) = env.episodes
        assert (left, right) == (1, -1) == (of_left["return.left"], of_right["return.right"])
        assert (of_left["is_success"], of_right["goals_conceded"]) == (1, 1)
        return
    raise AssertionError("no episode has ended")


@pytest.mark.usefixtures("package")
def test_a_seed_gives_the_same_episode_and_time_truncates_it() -> None:
    def played(env: Match, seed: int) -> list[Any]:
        rng = np.random.default_rng(0)
        first = env.reset(seed)[0]["left_0"]
        return [first, *(env.step({"left_0": rng.integers(19)})[0]["left_0"] for _ in range(50))]

    env = match("gfootball/1_vs_1_easy")
    first = played(env, 3)
    while env.agents:
        *_, terminated, truncated, _ = env.step({"left_0": IDLE})
    assert (terminated, truncated) == ({"left_0": False}, {"left_0": True})
    others = played(match("gfootball/1_vs_1_easy"), 3), played(env, 3), played(env, 4)
    assert [np.array_equal(first, other) for other in others] == [True, True, False]


@pytest.mark.usefixtures("package")
def test_scenarios_are_those_of_the_package() -> None:
    from gfootball.env.scenario_builder import all_scenarios

    examples = {"gfootball/tests", "gfootball/test_example_multiagent"}
    assert {f"gfootball/{name}" for name in all_scenarios()} - examples == set(gfootball.ids())
