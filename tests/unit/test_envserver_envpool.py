"""Environments of EnvPool, and football by the package gfootball, which is built from source."""

import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tests.build import pitch
from tests.build.pitch import RUN, SHOT
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire.bits import unpack_rows
from zerobeast.services.envserver import football, gfootball
from zerobeast.services.envserver.atari import AtariVectorEnv
from zerobeast.services.envserver.catalogue import make_env, make_vector_env
from zerobeast.services.envserver.envpool import PoolEnvs
from zerobeast.services.envserver.football import Football
from zerobeast.services.envserver.gfootball import CONTROL_ARGUMENT, Match
from zerobeast.testing.sessions import Session

FOOTBALL = "football/academy_empty_goal"
IDLE = 0


def pool(env_id: str, num_envs: int = 1, seed: int | None = 0, **settings: Any) -> PoolEnvs:
    kind = Football if env_id.startswith("football/") else PoolEnvs
    envs = kind(EnvConfig.model_validate({"id": env_id, **settings}), num_envs, seed)
    envs.reset()
    return envs


def test_a_minigrid_is_what_minigrid_does_over_whole_episodes() -> None:
    envs, other = pool("envpool/MiniGrid-Empty-5x5-v0"), make_env("MiniGrid-Empty-5x5-v0", {})
    rng, over, ends = np.random.default_rng(3), True, [0, 0]
    for _ in range(500):
        row = envs.rows[0]
        if over:
            obs, _ = other.reset()
            reward, terminated, truncated = 0.0, False, False
        assert row["first"] == over
        assert (row["obs"]["image"] == obs["image"]).all()
        assert row["obs"]["direction"] == obs["direction"]
        assert row["reward"] == pytest.approx(reward)
        assert (row["terminated"], row["truncated"]) == (terminated and not truncated, truncated)
        over = terminated or truncated
        ends = [ends[0] + terminated, ends[1] + truncated]
        action = rng.integers(3)
        envs.step(np.array([action]))
        if not over:
            obs, reward, terminated, truncated, _ = other.step(action)
    assert min(ends) > 1


def test_frames_of_an_atari_game_are_those_of_its_emulator_after_as_many_no_ops() -> None:
    envs = pool("envpool/Seaquest-v5", noop_max=1)  # it presses 1 to noop_max times nothing, ale-py one less
    config = EnvConfig.model_validate({"id": "SeaquestNoFrameskip-v4", "noop_max": 2})
    other = AtariVectorEnv("seaquest", config, 1, seed=4, threads=1)  # this seed draws one
    other.reset()
    assert (envs.spec.frame_stack, envs.spec.frame_skip) == (other.spec.frame_stack, other.spec.frame_skip)
    for action in np.random.default_rng(1).integers(envs.spec.action.choices[0], size=100):
        assert (envs.rows["obs"][0, 0] == other.rows["obs"][0]).all()
        assert envs.rows["reward"] == other.rows["reward"]
        for each in (envs, other):
            each.step(np.array([action]))


def test_a_goal_in_football_is_in_the_numbers_of_its_episode() -> None:
    envs = pool(FOOTBALL, 4)
    assert (envs.spec.obs.shape, envs.spec.obs.dtype, envs.spec.frame_stack) == ((72, 96, 4), "|b1", 4)
    assert unpack_rows(envs.rows, envs.spec)["obs"].any((1, 2)).all(), "each plane has a point"
    episodes = []
    for t in range(120):
        attack = RUN if t % 60 < 30 else SHOT
        envs.step(np.array([attack, attack, IDLE, IDLE]))
        episodes += envs.episodes
    assert {total for total, *_ in episodes} == {0.0, 1.0}
    for total, _, found in episodes:
        assert found == {"goals": total, "goals_conceded": 0.0, "goal_difference": total, "is_success": total}


@pytest.mark.parametrize(
    ("env_id", "settings", "named"),
    [
        ("envpool/Chess-v1", {}, "one player"),
        ("envpool/BinPack-v2", {}, "action.dtype"),
        ("envpool/Pong-v5", {"episodic_life": True}, "env.episodic_life"),
        ("envpool/Pong-v5", {"noop_max": 0}, "env.noop_max"),
        ("envpool/Pong-v5", {"kwargs": {"frame_skip": 1}}, "'frame_skip'"),
        ("envpool/CartPole-v1", {"kwargs": {"num_envs": 2}}, "'num_envs'"),
        ("envpool/CartPole-v1", {"kwargs": {"max_episode_steps": "x"}}, "envpool/CartPole-v1"),
        (FOOTBALL, {"kwargs": {"rewards": "scoring,checkpoints"}}, f"expected g{FOOTBALL}"),
    ],
)
def test_what_envpool_does_not_have_is_refused(env_id: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(EnvError, match=named):
        pool(env_id, **settings)


def test_single_environments_are_refused_where_they_are_needed() -> None:
    config = EnvConfig.model_validate({"id": "envpool/CartPole-v1", "action_mask": "legal"})
    with pytest.raises(EnvError, match=config.id):
        make_vector_env(config, 1, 0, EnvServerConfig(in_process=True)).collect()


def test_footballs_scenarios_are_those_of_envpool() -> None:
    import envpool  # every worker would load it, to collect this file

    found = {task for task in envpool.list_all_envs() if "football" in task}
    assert {f"g{env_id}-v1" for env_id in football.ids()} == found


EMPTY_GOAL = "gfootball/academy_empty_goal"
LEFT, RIGHT = (CONTROL_ARGUMENT.format(team) for team in ("left", "right"))
VECTORS = {"representation": "simple115v2"}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    if not find_spec("gfootball"):
        for name, module in pitch.modules().items():
            monkeypatch.setitem(sys.modules, name, module)


def match(**kwargs: Any) -> Match:
    found = make_env(EMPTY_GOAL, VECTORS | kwargs, several=True)
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


@pytest.mark.usefixtures("package")
def test_a_goal_brings_what_is_left_of_the_ten_checkpoints() -> None:
    for kwargs in ({LEFT: 3}, {LEFT: 0}, {RIGHT: 1, "representation": "pixels"}):
        with pytest.raises(EnvError):  # a scenario that has no such players
            match(**kwargs)
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
    assert env.step(np.array([IDLE]))["first"].all()


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


def test_scenarios_are_those_of_the_package() -> None:
    scenarios = pytest.importorskip("gfootball.env.scenario_builder", reason="gfootball is built from source")
    examples = {"gfootball/tests", "gfootball/test_example_multiagent"}
    assert {f"gfootball/{name}" for name in scenarios.all_scenarios()} - examples == set(gfootball.ids())
