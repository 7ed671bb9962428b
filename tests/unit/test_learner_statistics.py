"""Figures: windows, means, lag, and how far the brokers that act are behind. Time is a number."""

import numpy as np
import pytest

from zerobeast.common.wire.episodes import Episode
from zerobeast.services.learner.acting import MAX_PROCESSES, SPAN_S, ActingProcesses
from zerobeast.services.learner.episodes import HISTORY_POINTS, EpisodeStatistics
from zerobeast.services.learner.meters import MAX_LAG, Meters, PolicyLag
from zerobeast.services.learner.queue import Fate, Message


def test_means_are_of_the_last_hundred_episodes_and_go_on_where_they_were_saved() -> None:
    episodes, again = EpisodeStatistics(), EpisodeStatistics()
    assert (episodes.mean_return, episodes.mean_length) == (None, None)
    for value in range(150):
        episodes.add(float(value), 10, {"is_success": float(value % 2)})
    assert (episodes.count, episodes.mean_length) == (150, 10)
    assert episodes.mean_return == pytest.approx(np.mean(range(50, 150)))
    assert HISTORY_POINTS // 2 <= len(episodes.history) <= HISTORY_POINTS
    assert episodes.history == sorted({*episodes.history}), "each later than the one before"
    again.load(episodes.state())
    for each in (episodes, again):
        each.add(1.5, 3)
    assert (again.state(), again.infos) == (episodes.state(), episodes.infos)


def test_policy_lag_is_the_learners_version_minus_the_behaviours_and_never_negative() -> None:
    lag = PolicyLag()
    lag.add(3, np.array([], np.int64))  # an update of void steps alone
    assert (lag.mean, lag.max) == (None, None)
    lag.add(10_000, np.array([10_000, 9_999, 9_997, 9_997, 20_000, 1]))
    assert (lag.mean, lag.max) == (pytest.approx((0 + 1 + 3 + 3 + 0 + 9_999) / 6), 9_999)
    counts = lag.histogram()
    assert counts[[0, 1, 2, 3, MAX_LAG]].tolist() == [2, 1, 0, 2, 1]
    assert lag.histogram().sum() == 0, "since the last call"


def meters_of(*tasks: str, returns: dict[int, list[float]]) -> Meters:
    """Meters after episodes with these returns, by number of the task."""
    meters = Meters(tasks)
    for task, values in returns.items():
        meters.count_finished([Message(1, 0, 1, 1, tuple(Episode(value, 3) for value in values), task=task)])
    return meters


def test_each_of_several_environments_has_its_own_mean_return_which_goes_on_where_it_was_saved() -> None:
    tasks = ("A-v0", "B-v0", "C-v0")
    several, again = meters_of(*tasks, returns={0: [1.0, 3.0], 2: [400.0]}), Meters(tasks)
    page = several.page(1.0)
    assert page["mean_return_100_by_task"] == {"A-v0": 2.0, "B-v0": None, "C-v0": 400.0}
    assert (page["episodes"], page["mean_return_100"]) == (3, pytest.approx(404 / 3))
    assert meters_of("A-v0", returns={0: [1.0, 3.0]}).page(1.0)["mean_return_100_by_task"] == {}
    again.load(several.state())
    assert again.state() == several.state()


def test_the_stale_fraction_is_that_of_the_last_seconds() -> None:
    meters = Meters(["A-v0"])
    for second in range(40):
        fate: Fate = "stale" if second >= 20 and second % 2 else "used"
        meters.count_finished([Message(1, 0, second, 8, fate=fate), Message(1, 0, second, 100, fate="refused")])
        if second <= 19:
            assert meters.page(float(second))["stale_fraction"] == 0.0
    assert meters.page(39.0)["stale_fraction"] == pytest.approx(0.5, abs=0.1)


NAN = float("nan")


@pytest.fixture
def acting() -> ActingProcesses:
    """The acting processes of a learner that has published versions up to 9."""
    found = ActingProcesses()
    found.published = 9
    return found


def measured(acting: ActingProcesses, epochs: list[int], versions: list[list[int]], values: list[list[float]]) -> None:
    acting.measure(np.array(epochs), np.array(versions), np.array(values, np.float32))


def test_a_broker_counts_as_long_as_its_rollouts_arrive_and_no_peer_can_invent_many(acting: ActingProcesses) -> None:
    for epoch, now in ((1, 0.0), (2, 1.0), (0, 2.0), (1, 5.0)):
        acting.note(epoch, 0, now)
    counts = []
    for later_s in (1.0, 1.1, 5.1):
        acting.forget(SPAN_S + later_s)
        counts.append(len(acting))
    assert counts == [2, 1, 0], "0 is none that is known"
    for epoch in range(1, 3 * MAX_PROCESSES):
        acting.note(epoch, 0, 0.0)
    assert len(acting) == MAX_PROCESSES


def test_a_divergence_is_the_mean_over_steps_of_the_newest_published_version_of_each(acting: ActingProcesses) -> None:
    acting.note(7, 10, 0.0)  # not published yet
    for epoch, version in ((7, 3), (8, 4)):
        acting.note(epoch, version, 0.0)
    measured(acting, [7, 8, 7, 9], [[3, 10], [3, 4], [2, 3], [1, 1]], [[1.0, NAN], [9.0, 0.5], [9.0, 2.0], [5.0, 5.0]])
    assert acting.news() == [[7, 3, 1.5], [8, 4, 0.5]], "however many environments each has"


def test_the_divergence_is_smoothed_until_another_version_acts(acting: ActingProcesses) -> None:
    acting.note(7, 1, 0.0)
    for value in (1.0, 0.0, 0.0):
        measured(acting, [7], [[1]], [[value]])
    assert acting.news() == [[7, 1, 0.25]]
    acting.note(7, 2, 0.0)
    assert acting.news() == []
    wanted = {"syncs": 2, "syncs_by_acting": {0: 2}, "lag_by_acting": {0: 3}, "divergence_by_acting": {}}
    assert acting.page(5) == wanted
