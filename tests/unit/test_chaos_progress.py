"""Rates over time, and when a run is back at its rate. Pages are read late, and learners restart."""

import pytest

from zerobeast.tools.chaos.progress import WINDOW_S, ProgressLog


def steady(progress: ProgressLog, start: float, stop: float, rate: float, epoch: int = 1, used: float = 0.0) -> float:
    """Add a page every half second of a learner started at `start`; returns what it has used by `stop`."""
    for tick in range(int(2 * (stop - start)) + 1):
        now = start + tick / 2
        progress.add(now, now - start, epoch, int(used + rate * (now - start)))
    return used + rate * (stop - start)


def test_a_rate_is_what_was_used_between_two_moments() -> None:
    progress = ProgressLog()
    steady(progress, 0.0, 20.0, 80.0)
    assert progress.rate(5.0, 5.3) == pytest.approx(80.0)
    assert progress.rate(3.1, 9.7) == pytest.approx(80.0)
    assert progress.usual(20.0, []) == pytest.approx(80.0)


def test_a_page_that_is_read_late_shows_by_its_age_when_it_was_written() -> None:
    progress = ProgressLog()
    progress.add(10.0, 1.0, 1, 0)
    progress.add(14.0, 3.0, 1, 200)  # read two seconds late
    progress.add(13.0, 4.0, 1, 300)
    assert progress.times == [10.0, 12.0, 13.0]
    progress.add(13.5, 4.0, 1, 300)  # the same page again
    assert progress.times == [10.0, 12.0, 13.0]


def test_updates_that_a_killed_learner_had_made_count_and_are_not_counted_twice() -> None:
    progress = ProgressLog()
    used = steady(progress, 0.0, 10.0, 80.0)
    steady(progress, 15.0, 25.0, 80.0, epoch=2, used=used - 160)
    assert progress.rate(10.5, 14.5) == pytest.approx(0.0)
    assert progress.total(25.0) == pytest.approx(1600.0)


def test_the_usual_rate_is_that_of_undisturbed_windows() -> None:
    progress = ProgressLog()
    used = steady(progress, 0.0, 30.0, 80.0)
    for tick in range(1, 61):
        progress.add(30.0 + tick / 2, 30.0 + tick / 2, 1, int(used + 20.0 * tick / 2))
    assert progress.usual(60.0, [(30.0, 57.0)]) == pytest.approx(80.0)
    assert progress.usual(60.0, [(0.0, 60.0)]) is None
    assert ProgressLog().usual(60.0, []) is None


def test_a_run_is_back_when_a_whole_window_reaches_the_goal() -> None:
    progress = ProgressLog()
    used = steady(progress, 0.0, 20.0, 80.0)
    steady(progress, 26.0, 40.0, 80.0, epoch=2, used=used)
    assert progress.back(22.0, 72.0) == pytest.approx(26.0 - 0.1 * WINDOW_S, abs=0.11)
    assert progress.back(27.0, 72.0) == 27.0
    assert progress.back(22.0, 90.0) is None
    assert progress.back(38.0, 72.0) is None, "a window that is not over yet proves nothing"


def test_a_picture_shows_the_rate_of_every_period() -> None:
    progress = ProgressLog()
    steady(progress, 0.0, 10.0, 80.0)
    moments, rates = progress.rates(2.0)
    assert moments == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert rates == pytest.approx([80.0] * 5)
    assert ProgressLog().rates(1.0) == ([], [])
