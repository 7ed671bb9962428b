"""Environments of several agents, whose agents are rows."""

from typing import Any

import numpy as np
import pytest

from tests.helpers import wait_until
from zerobeast.common.errors import EnvError, RemoteProtocolError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire.episodes import ends_of
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.sessions import SessionRequest
from zerobeast.services.envserver.vector import VectorEnv
from zerobeast.services.evaluator.play import EpisodeCounter

RELAY, TURNS, TEAMS, UNNAMED, NUMBERED, ODD = (
    f"tests.build.agents:{name}" for name in ("Relay", "Turns", "Teams", "Unnamed", "Numbered", "Odd")
)
CONNECT_FOUR = "pettingzoo/classic/connect_four_v3"
#: obs, reward, terminated, truncated, first of a, b and c, if the action of each is its number plus 1
AWAY = ([0, 0], 0, False, False, True)
TIMELINE = [
    [([0, 3], 0, False, False, True), ([0, 3], 0, False, False, True), AWAY],
    [([1, 3], 1, True, False, False), ([1, 3], 2, False, False, False), AWAY],
    [AWAY, ([2, 3], 2, False, False, False), ([2, 3], 0, False, False, True)],
    [AWAY, ([3, 3], 2, False, False, False), ([3, 3], 3, False, False, False)],
    [AWAY, ([4, 3], 2, False, True, False), ([4, 3], 3, True, False, False)],
]
OF_A, OF_B, OF_C = (
    {f"return.{agent}": value, "success": float(agent != "a")}
    for agent, value in zip("abc", (1.0, 8.0, 6.0), strict=True)
)
EPISODES = [[], [[1.0, 1, OF_A]], [], [], [[8.0, 4, OF_B], [6.0, 2, OF_C]]]


def made(env_id: str = RELAY, envs: int = 1, agents: int = 3, **settings: Any) -> VectorEnv:
    config = EnvConfig(id=env_id, agents=agents, **settings)
    env = make_vector_env(config, envs * agents, 3, EnvServerConfig(in_process=True))
    finish(env)
    env.reset()
    finish(env)
    return env


def finish(env: VectorEnv) -> None:
    wait_until(env.collect)


def stepped(env: VectorEnv, actions: Any) -> VectorEnv:
    env.step(np.asarray(actions, np.int64))
    finish(env)
    return env


@pytest.mark.parametrize("fault", ["", "lingers"])
def test_an_agent_that_has_left_or_not_joined_has_rows_that_are_first_of_episodes(fault: str) -> None:
    env = made(envs=2, kwargs={"fault": fault})
    for number, (rows, episodes) in enumerate(zip([*TIMELINE, TIMELINE[0]], [*EPISODES, []], strict=True)):
        if number:
            stepped(env, [1, 2, 3] * 2)
        names = ("obs", "reward", "terminated", "truncated", "first")
        found = list(zip(*(env.rows[name].tolist() for name in names), strict=True))
        assert found[:3] == rows
        assert [row[0] for row in found[3:]] == [[seen, {3: 4, 0: 0}[seed]] for (seen, seed), *_ in rows]
        assert [row[1:] for row in found[3:]] == [row[1:] for row in rows]
        assert env.episodes == episodes * 2


def test_a_session_of_agents_is_stepped_in_processes_and_seeded_by_environments() -> None:
    env = make_vector_env(EnvConfig(id=RELAY, agents=3), 9, 3, EnvServerConfig(workers=2))
    try:
        for begin in (lambda: None, env.reset, lambda: env.step(np.arange(9) % 3), lambda: env.reset(seed=6)):
            begin()
            finish(env)
        assert env.rows["obs"].tolist() == [[0, 6], [0, 6], [0, 0], [0, 7], [0, 7], [0, 0], [0, 8], [0, 8], [0, 0]]
        env._workers[1].process.kill()  # type: ignore[attr-defined]
        stepped(env, np.zeros(9))
        assert env.rows["first"].tolist() == [False, False, True] + [True] * 6, "that process has two of them"
        assert env.errors == 2
    finally:
        env.close()
        wait_until(lambda: env.closed(force=True))


def test_smaller_observations_and_actions_of_an_agent_are_padded() -> None:
    env = made(kwargs={"sizes": [2, 1, 2], "choices": 3})
    assert (env.spec.obs.arrays[0].shape, env.spec.action.choices, env.spec.action_mask) == ((2,), (5,), True)
    assert env.rows["action_mask"].tolist() == [[True] * 3 + [False] * 2, [True] * 5, [True] * 5]
    assert stepped(env, [2, 4, 0]).rows["obs"].tolist() == [[1, 3], [1, 0], [0, 0]]
    env = made(pad_actions=7)
    for _ in range(3):  # an agent that is away may choose what it could if it were there
        assert env.rows["action_mask"].tolist() == [[True] * 5 + [False] * 2] * 3
        stepped(env, [0, 0, 0])


def test_an_agent_that_waits_for_its_turn_has_one_choice() -> None:
    env = made(TURNS)
    assert env.spec.obs.arrays[0].shape == (2,), "the mask is no part of the observation, and there is no other"
    assert env.rows["action_mask"].astype(int).tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1] * 5]


def test_an_observation_has_the_number_of_its_agent_if_asked() -> None:
    env = made(agent_id=True)
    assert [(part.name, part.space.choices) for part in env.spec.obs.spaces] == [("obs", ()), ("agent", (3,))]  # type: ignore[union-attr]
    assert env.rows["obs"]["agent"].tolist() == [0, 1, 0], "c is away"


def test_returns_are_reported_by_role() -> None:
    env = made(TEAMS)
    assert stepped(env, [1, 2, 3]).episodes == [[1.0, 1, {"return.red": 1.0, "success": 0.0}]]
    assert len(stepped(made(NUMBERED), [1, 2, 3]).episodes) == 1


@pytest.mark.parametrize(
    ("env_id", "settings", "sentence"),
    [
        (RELAY, {"kwargs": {"fault": "unknown"}}, "agent 'd' is none of possible_agents: a, b, c"),
        (RELAY, {"kwargs": {"fault": "none"}}, "there are no agents after a reset"),
        (RELAY, {"kwargs": {"fault": "silent"}}, "there is no observation of agent 'a'"),
        (RELAY, {"kwargs": {"fault": "leaves"}}, "agent 'b' has left without having been terminated or truncated"),
        (RELAY, {"kwargs": {"fault": "dtype"}}, "agent 'c': obs.dtype is |u1, expected <f4 as in .*, agent 'a'"),
        (RELAY, {"agents": 2}, "env.agents is 2, but .*:Relay has 3 agents: a, b, c"),
        (ODD, {}, "env.id .*:Odd': spaces of its agents cannot be read: KeyError: 'a'"),
        (UNNAMED, {}, "expected possible_agents, the names of all agents"),
        ("CartPole-v1", {}, "env.agents is 3, but CartPole-v1 has a single agent"),
        ("CartPole-v1", {"agents": 1, "agent_id": True}, "env.agent_id is true, but CartPole-v1 has a single agent"),
        (f"zipf({RELAY},{TURNS})", {"agents": 1}, "expected a gymnasium.Env, but what makes it returned Relay"),
        ("pettingzoo/classic/conect_four_v3", {}, r"is unknown; did you mean pettingzoo/classic/connect_four_v3\?"),
    ],
)
def test_what_is_wrong_is_reported_in_one_sentence(
    env_id: str, settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.services.envserver.shard.MAX_FAILURES", 1)
    with pytest.raises(EnvError, match=sentence.replace("|", r"\|")):
        stepped(made(env_id, **settings), [0, 0, 0])


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"num_envs": 4}, "num_envs: 4, expected a multiple of env.agents 3"),
        ({"num_envs": 6, "reset_masks": True}, "reset_masks: true, expected false, because all 3 agents"),
    ],
)
def test_a_session_is_of_whole_environments(terms: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        SessionRequest.read({"env": {"id": RELAY, "agents": 3}, "seed": 0, **terms})


def test_two_players_take_turns_until_one_has_won() -> None:
    env = made(CONNECT_FOUR, agents=2)
    for turn in range(7):
        assert env.rows["action_mask"].sum(1).tolist() == [[7, 1], [1, 7]][turn % 2]
        stepped(env, [3, 3] if turn % 2 == 0 else [0, 2])
    assert env.rows["reward"].tolist() == [1, -1]
    assert env.rows["terminated"].all()
    assert env.episodes == [[1.0, 7], [-1.0, 7]]
    assert stepped(env, [0, 0]).rows["first"].all()


def test_episodes_of_agents_are_counted_until_one_has_been_away_for_too_long() -> None:
    env, counter = made(), EpisodeCounter(3, 3, max_steps=4)
    while not counter.complete:
        counter.add(env.rows, ends_of(env.episodes, pytest.fail))
        stepped(env, [1, 2, 3])
    assert sorted(episode.value for episode in counter.episodes) == [1, 6, 8]
    rows, counter = env.rows.copy(), EpisodeCounter(3, 3, max_steps=4)
    rows["first"] = True
    for _ in range(4):
        assert not counter.complete
        counter.add(rows, [])
    assert counter.complete
