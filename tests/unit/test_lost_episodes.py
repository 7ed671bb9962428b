"""Episodes that environments fail in: how they are reported, counted and played again. No sockets, no processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.envs import COUNTER, ON_PURPOSE
from tests.build.steps import MANY, rows
from zerobeast.common.errors import BeastError, RemoteProtocolError
from zerobeast.common.files import metrics
from zerobeast.common.wire.episodes import (
    MAX_NUMBERS,
    MAX_REASON,
    MAX_REASONS,
    Episode,
    Lost,
    ends_of,
    lightened,
    lost_of,
)
from zerobeast.common.wire.messages import Header, Kind, pack_header
from zerobeast.playing.play import EpisodeCounter
from zerobeast.services.envserver.sessions import MAX_ENVS_PER_SESSION
from zerobeast.services.learner.episodes import LostEpisodes
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.queue import Message
from zerobeast.testing.sessions import session

ZERO = "ZeroDivisionError: division by zero (walk.py:9)"


def test_lost_episodes_travel_beside_the_ends_and_some_of_them_name_their_reason() -> None:
    several = [[ZERO, row] for row in range(MAX_ENVS_PER_SESSION)]
    entries = lightened([[1.0, 2], *several, []])
    assert entries == [[1.0, 2], *several[:MAX_REASONS], *(["", row] for _, row in several[MAX_REASONS:]), []]
    assert ends_of(entries, pytest.fail) == (Episode(1.0, 2), None)
    assert lost_of(entries) == tuple(Lost(ZERO, row) for row in range(MAX_ENVS_PER_SESSION))
    longest = lightened([["é" * MAX_REASON, env] for env in range(MAX_ENVS_PER_SESSION)])
    pack_header(Header(Kind.OBS, 7, 0, 5, 3, (longest, None)))


@pytest.mark.parametrize("one", [["x" * (MAX_REASON + 1), 0], ["\x1b[2J", 0], ["x", -1], ["x", True]])
def test_a_malformed_one_is_counted_and_ignored(one: Any) -> None:
    refused: list[RemoteProtocolError] = []
    assert lost_of([one]) == ()
    assert ends_of([one, [1.0, 2]], refused.append) == (None, Episode(1.0, 2))
    assert len(refused) == 1


def test_of_too_many_infos_those_of_evenly_spaced_episodes_travel() -> None:
    few = [[float(env), 1, {"x": 1.0}] for env in range(MAX_NUMBERS)]
    assert lightened(few) == few
    many = [[float(env), 1, *([{str(name): 1.0 for name in range(20)}] if env % 3 else [])] for env in range(90)]
    found = lightened(many)
    assert [entry[:2] for entry in found] == [entry[:2] for entry in many]
    having = [env for env, entry in enumerate(found) if len(entry) > 2]
    assert len(having) == MAX_NUMBERS // 20
    assert max(np.diff([0, *having, 90])) <= 6


def test_an_environment_that_raises_reports_which_episode_it_costs_and_where_it_raised() -> None:
    with session(COUNTER, {"kwargs": {"raise_at": 2}}, envs=2) as env:
        env.reset()
        for expected in ([], [0, 1], []):
            env.step(np.array([1, 1]))
            lost = lost_of(env.episodes)
            assert [each.row for each in lost] == expected
            assert all(each.reason.startswith(f"RuntimeError: {ON_PURPOSE} (envs.py:") for each in lost)
        env.reset()
        assert env.episodes == []


def test_the_most_frequent_reason_is_named_whatever_values_it_has() -> None:
    lost = LostEpisodes()
    lost.add(ZERO)
    for value in range(3):
        lost.add(f"an observation is [nan 0.{value}], expected finite numbers (walk.py:12)")
    assert lost.reason == "an observation is [nan 0.2], expected finite numbers (walk.py:12), and others"
    again = LostEpisodes()
    again.load(lost.state())
    assert (again.count, again.reason) == (4, lost.reason)


def test_too_many_lost_episodes_are_a_sentence_and_few_never_are() -> None:
    lost = LostEpisodes()
    for _ in range(100):
        lost.add(ZERO)
    assert not lost.excess(0.1), "a process that was killed costs the episodes of all its environments"
    lost.add(ZERO)
    assert lost.excess(0.1).startswith(f"101 of the last 101 episodes were lost to {ZERO}: expected at most 100")
    for _ in range(950):
        lost.ended()
    assert not lost.excess(0.1), "the newest count"
    assert not lost.excess(1.0)


def test_the_learner_counts_what_was_begun_what_ended_and_what_is_lost() -> None:
    meters = Meters(["CartPole-v1"])
    episodes, lost = (Episode(1.0, 2), Episode(2.0, 3)), (Lost(ZERO, 0),)
    meters.finished([Message(7, 0, 1, rollouts=8, episodes=episodes, lost=lost), Message(7, 0, 2, rollouts=8)])
    page = meters.page(0.0)
    assert (page["episodes_begun"], page["episodes"], page["episodes_lost"]) == (8 + 3, 2, 1)
    assert page["lost_to"] == ZERO
    other = Meters(["CartPole-v1"])
    other.load(meters.state())
    assert other.page(0.0)["episodes_begun"] == 11


def test_an_evaluation_plays_lost_episodes_again_and_counts_them() -> None:
    counter = EpisodeCounter(2, 2, MANY)
    counter.add(rows([1.0, 1.0], ended=[0]), [Episode(1.0, 1)])
    for lost in (1, 2):  # the second one in its first step
        assert counter.add(rows([0.0, 0.0], first=[0, 1]), [], [Lost(ZERO, 1)]) == []
        assert (counter.lost, counter.reason, counter.complete) == (lost, ZERO, False)
    assert counter.add(rows([5.0, 3.0], ended=[1]), [Episode(3.0, 1)]) == [Episode(3.0, 1)], "without the lost part"
    counter.add(rows([0.0, 0.0], first=[0, 1]), [])
    assert (counter.lost, counter.complete) == (2, True), "those beyond an environment's share do not count"


def test_an_evaluation_is_given_up_once_more_episodes_are_lost_than_were_asked_for() -> None:
    counter = EpisodeCounter(1, 1, MANY)
    counter.add(rows([1.0]), [])
    counter.add(rows([0.0], first=[0]), [], [Lost(ZERO, 0)])
    counter.add(rows([1.0]), [])
    with pytest.raises(BeastError):
        counter.add(rows([0.0], first=[0]), [])


def test_the_folder_of_a_run_tells_how_many_are_lost_and_why(tmp_path: Path) -> None:
    assert metrics.lost(tmp_path) == ""
    (tmp_path / "metrics.csv").write_text("agent_steps,episodes,episodes_lost\n100,27,573\n")
    (tmp_path / "lost").write_text(ZERO)
    assert metrics.lost(tmp_path) == f"573 of 600 episodes were lost to {ZERO}"
