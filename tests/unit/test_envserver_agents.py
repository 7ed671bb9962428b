"""Environments of several agents, whose agents are rows."""

from typing import Any

import numpy as np
import pytest

from zerobeast.common.errors import EnvError
from zerobeast.common.wire.episodes import ends_of, read_lost
from zerobeast.playing.play import EpisodeCounter
from zerobeast.testing.sessions import Session

RELAY, TURNS, TEAMS, UNNAMED, NUMBERED = (
    f"tests.build.agents:{name}" for name in ("Relay", "Turns", "Teams", "Unnamed", "Numbered")
)
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


def made(env_id: str = RELAY, envs: int = 1, agents: int = 3, **settings: Any) -> Session:
    env = Session(env_id, {"agents": agents, **settings}, envs=envs, seed=3)
    env.reset()
    return env


def stepped(env: Session, actions: Any) -> Session:
    env.step(np.asarray(actions, np.int64))
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


def test_smaller_observations_and_actions_of_an_agent_are_padded() -> None:
    env = made(kwargs={"sizes": [2, 1, 2], "choices": 3})
    spec = env.env.spec
    assert (spec.obs.arrays[0].shape, spec.action.choices, spec.action_mask) == ((2,), (5,), True)
    assert env.rows["action_mask"].tolist() == [[True] * 3 + [False] * 2, [True] * 5, [True] * 5]
    assert stepped(env, [2, 4, 0]).rows["obs"].tolist() == [[1, 3], [1, 0], [0, 0]]
    env = made(pad_actions=7)
    for _ in range(3):  # an agent that is away may choose what it could if it were there
        assert env.rows["action_mask"].tolist() == [[True] * 5 + [False] * 2] * 3
        stepped(env, [0, 0, 0])


def test_an_agent_that_waits_for_its_turn_has_one_choice_and_a_number_and_a_role_if_asked() -> None:
    env = made(TURNS)
    assert env.env.spec.obs.arrays[0].shape == (2,), "the mask is no part of the observation, and there is no other"
    assert env.rows["action_mask"].astype(int).tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1] * 5]
    assert made(agent_id=True).rows["obs"]["agent"].tolist() == [0, 1, 0], "c is away"
    assert stepped(made(TEAMS), [1, 2, 3]).episodes == [[1.0, 1, {"return.red": 1.0, "success": 0.0}]]
    assert len(stepped(made(NUMBERED), [1, 2, 3]).episodes) == 1


@pytest.mark.parametrize(
    ("env_id", "settings", "named"),
    [
        (RELAY, {"kwargs": {"fault": "unknown"}}, "'d'"),
        (RELAY, {"kwargs": {"fault": "none"}}, "no agents"),
        (RELAY, {"kwargs": {"fault": "silent"}}, "observation of agent 'a'"),
        (RELAY, {"kwargs": {"fault": "leaves"}}, "'b' has left"),
        (RELAY, {"kwargs": {"fault": "dtype"}}, "'c': obs.dtype"),
        (RELAY, {"agents": 2}, "env.agents is 2"),
        (UNNAMED, {}, "possible_agents"),
        ("CartPole-v1", {}, "env.agents is 3"),
        ("CartPole-v1", {"agents": 1, "agent_id": True}, "env.agent_id"),
        (f"zipf({RELAY},{TURNS})", {"agents": 1}, "returned Relay"),
    ],
)
def test_what_is_wrong_is_reported_in_one_sentence(
    env_id: str, settings: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.services.envserver.shard.MAX_FAILURES", 1)
    with pytest.raises(EnvError, match=named):
        stepped(made(env_id, **settings), [0, 0, 0])


def test_of_several_agents_those_that_act_lose_an_episode() -> None:
    lost = read_lost(stepped(made(kwargs={"fault": "leaves"}), [0, 1, 2]).episodes)
    assert [each.row for each in lost] == [0, 1], "the third has not joined"


def test_episodes_of_agents_are_counted_until_one_has_been_away_for_too_long() -> None:
    env, counter = made(), EpisodeCounter(3, 3, max_steps=4)
    while not counter.complete:
        counter.add(env.rows, ends_of(env.episodes, pytest.fail))
        stepped(env, [1, 2, 3])
    assert sorted(episode.value for episode in counter.episodes) == [1, 6, 8]
    rows, counter = env.rows, EpisodeCounter(3, 3, max_steps=4)
    rows["first"] = True
    for _ in range(4):
        assert not counter.complete
        counter.add(rows, [])
    assert counter.complete
