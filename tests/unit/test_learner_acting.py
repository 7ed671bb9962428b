"""Which brokers act according to the rollouts, and how far their policies are behind."""

import numpy as np
import pytest

from zerobeast.services.learner.acting import MOST, SPAN_S, ActingProcesses

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
    for epoch in range(1, 3 * MOST):
        acting.note(epoch, 0, 0.0)
    assert len(acting) == MOST


def test_a_divergence_is_the_mean_over_the_steps_of_the_newest_published_version_of_each(
    acting: ActingProcesses,
) -> None:
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
    assert acting.page(5) == {
        "syncs": 2,
        "syncs_by_acting": {0: 2},
        "lag_by_acting": {0: 3},
        "divergence_by_acting": {},
    }
