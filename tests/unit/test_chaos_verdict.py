"""What decides whether a run under faults was in order: its rates, its accounts, the faults drawn, and their table."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from zerobeast.tools.chaos import verdict
from zerobeast.tools.chaos.balance import Balance
from zerobeast.tools.chaos.faults import draw
from zerobeast.tools.chaos.progress import WINDOW_S, ProgressLog

NAMES = ("learner 0", "broker 0", "broker 1", "envserver 0", "actor 0", "actor 1", "actor 2")
CLOSED = Balance(100, 90, 4, 0, {"actor died": 6}, 0, {}, 1)


def test_every_role_and_kind_of_fault_is_drawn_by_the_seed_alone() -> None:
    drawn = list(islice(draw(1, NAMES), 1000))
    assert drawn == list(islice(draw(1, NAMES), 1000))
    assert len({fault.title for fault in drawn if len(fault.targets) == 1}) == 12
    assert Counter(name for fault in drawn for name in fault.targets).keys() == set(NAMES)
    assert all(len(set(fault.targets)) == len(fault.targets) for fault in drawn)


@pytest.mark.parametrize("change", [{}, {"gap": 3}, {"waiting": 3}, {"most_waiting": 3}, {"used": 91}])
def test_accounts_that_close_are_in_order_and_all_others_are_not(change: dict[str, int]) -> None:
    assert len(list(verdict.accounts(replace(CLOSED, **change), window=2, steps=450, unroll_length=5))) == len(change)


def test_growth_of_old_services_weights_that_go_back_and_bad_messages_are_found() -> None:
    def points(age: float, growth: float) -> list[tuple[float, float, float]]:
        return [(float(second), second % age, 100.0 + growth * second) for second in range(200)]

    series = {"flat": points(1e9, 0.0), "grows": points(1e9, 1.0), "young": points(10.0, 1.0)}
    assert [found.split()[0] for found in verdict.memory(series)] == ["grows"]
    cases = ((3, 8, 0), (3, 9, 1), (0, 0, 1), (4, 0, 1))  # once for every group at each of two starts
    for epochs, drops, wrong in cases:
        assert len(list(verdict.versions(epochs, starts=2, drops=drops, groups=4))) == wrong
    assert list(verdict.strangeness({"session": 5}, 0)) == []
    assert len(list(verdict.strangeness({"payload": 1, "kind": 2}, 3))) == 3


def steady(progress: ProgressLog, start: float, stop: float, epoch: int = 1, used: float = 0.0) -> float:
    """Add a page every half second of a learner that uses 80 rollouts a second; returns what it has used by `stop`."""
    for tick in range(int(2 * (stop - start)) + 1):
        progress.add(start + tick / 2, tick / 2, epoch, int(used + 40 * tick))
    return used + 80.0 * (stop - start)


def test_what_a_killed_learner_had_used_counts_once_and_a_run_is_back_after_a_whole_window_at_its_rate() -> None:
    progress = ProgressLog()
    used = steady(progress, 0.0, 20.0)
    steady(progress, 26.0, 40.0, epoch=2, used=used - 160)
    assert progress.rate(5.0, 15.3) == progress.usual(20.0, []) == pytest.approx(80.0)
    assert progress.rate(20.5, 25.5) == pytest.approx(0.0)
    assert progress.total(40.0) == pytest.approx(80.0 * 34)
    assert progress.usual(20.0, [(0.0, 20.0)]) is None
    assert progress.back(22.0, 72.0) == pytest.approx(26.0 - 0.1 * WINDOW_S, abs=0.11)
    assert progress.back(22.0, 90.0) is None
    assert progress.back(38.0, 72.0) is None, "a window that is not over yet proves nothing"

    late = ProgressLog()  # a page shows by its age when it was written
    for read_at, age, count in [(10.0, 1.0, 0), (14.0, 3.0, 200), (13.0, 4.0, 300), (13.5, 4.0, 300)]:
        late.add(read_at, age, 1, count)
    assert late.times == [10.0, 12.0, 13.0]
