"""Growth over the last seconds: old growth is forgotten, and that of a young window is not diluted."""

import pytest

from zerobeast.common.health.sliding_window import SlidingWindow


def test_a_rate_is_growth_over_the_window_or_since_it_was_opened() -> None:
    window = SlidingWindow(10.0)
    assert window.per_s(100.0, 7, 0.0) == [0.0, 0.0], "the first call opens it"
    assert window.per_s(102.0, 47, 1.0) == [20.0, 0.5]
    for second in range(103, 131):
        window.per_s(float(second), 47 + 50 * (second - 102), 1.0)
    assert window.per_s(130.0, 47 + 50 * 28, 1.0) == [50.0, 0.0]
    assert window.growth(130.0, 47 + 50 * 28, 1.0) == (10.0, [500, 0.0])
    for second in range(131, 142):
        window.per_s(float(second), 1447, 1.0)
    assert window.per_s(141.0, 1447, 1.0) == [0.0, 0.0], "nothing happened in the whole window"


def test_a_window_that_was_not_read_for_long_has_what_happened_meanwhile() -> None:
    window = SlidingWindow(5.0)
    window.growth(0.0, 0)
    assert window.growth(30.0, 60) == (30.0, [60])


def test_a_window_that_is_asked_often_stays_exact() -> None:
    window = SlidingWindow(10.0)
    for tick in range(1, 10_001):
        window.growth(tick / 100, tick)
    assert window.per_s(100.0, 10_000) == [pytest.approx(100)]
