"""Google Research Football by the package gfootball, which is built from source: most of these need it."""

import sys
from typing import Any

import numpy as np
import pytest

from zerobeast.common.errors import EnvError
from zerobeast.services.envserver import gfootball
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.gfootball import CONTROLLED, Match
from zerobeast.testing.sessions import Session

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


def session(env_id: str, agents: int, **kwargs: Any) -> Session:
    env = Session(env_id, {"kwargs": kwargs, "agents": agents}, envs=1, seed=0)
    env.reset()
    return env


def test_what_the_package_does_not_have_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for kwargs, named in (({"players": 2}, "'players'"), ({"rewards": "checkpoints"}, "rewards")):
        with pytest.raises(EnvError, match=named):
            match(**kwargs)
    monkeypatch.setitem(sys.modules, "gfootball.env.config", None)
    with pytest.raises(EnvError, match="source"):
        match()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        (EMPTY_GOAL, {LEFT: 3}, LEFT),
        (EMPTY_GOAL, {LEFT: 0}, EMPTY_GOAL),
        (EMPTY_GOAL, {RIGHT: 1, "representation": "pixels"}, "'pixels'"),
    ],
)
@pytest.mark.usefixtures("package")
def test_players_that_a_scenario_does_not_have_are_refused(env_id: str, kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(EnvError, match=named):
        match(env_id, **kwargs)


@pytest.mark.usefixtures("package")
def test_a_goal_brings_what_is_left_of_the_ten_checkpoints() -> None:
    env = session(EMPTY_GOAL, 1, rewards="scoring,checkpoints")
    assert (env.env.spec.obs.arrays[0].dtype, env.env.spec.obs.arrays[0].shape) == ("|b1", (72, 96, 16))
    assert env.rows["obs"].any((1, 2)).all(), "each plane has a point"
    checkpoints = sum(env.step(np.array([RUN]))["reward"].item() for _ in range(20))
    assert checkpoints == pytest.approx(round(checkpoints, 1))
    assert 0 < checkpoints < 1
    while not env.episodes:
        env.step(np.array([SHOT]))
    total, _, found = env.episodes[0]
    assert total == pytest.approx(2)
    assert found == {"goals": 1, "goals_conceded": 0, "goal_difference": 1, "is_success": 1}


@pytest.mark.usefixtures("package")
def test_players_of_both_teams_are_agents_that_see_the_pitch_from_their_side() -> None:
    env = session(EMPTY_GOAL, 2, **VECTORS, **{RIGHT: 1})
    np.testing.assert_allclose(env.rows["obs"][1, 88:90], -env.rows["obs"][0, 88:90], err_msg="where the ball is")
    for t in range(80):
        env.step(np.array([RUN if t < 20 else SHOT, IDLE]))
        if not env.episodes:
            continue
        (left, _, of_left), (right, _, of_right) = env.episodes
        assert (left, right) == (1, -1) == (of_left["return.left"], of_right["return.right"])
        assert (of_left["is_success"], of_right["goals_conceded"]) == (1, 1)
        return
    raise AssertionError("no episode has ended")


@pytest.mark.usefixtures("package")
def test_scenarios_are_those_of_the_package() -> None:
    from gfootball.env.scenario_builder import all_scenarios

    examples = {"gfootball/tests", "gfootball/test_example_multiagent"}
    assert {f"gfootball/{name}" for name in all_scenarios()} - examples == set(gfootball.ids())
