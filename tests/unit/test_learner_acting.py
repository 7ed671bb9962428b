"""Which brokers act according to the rollouts, and how far their policies are behind."""

import numpy as np

from zerobeast.services.learner.acting import MOST, SPAN_S, ActingProcesses


def acting() -> ActingProcesses:
    """The acting processes of a learner that has published versions up to 9."""
    found = ActingProcesses()
    found.published = 9
    return found


def measured(found: ActingProcesses, epochs: list[int], versions: list[list[int]], values: list[list[float]]) -> None:
    found.measure(np.array(epochs), np.array(versions), np.array(values, np.float32))


def test_a_broker_counts_as_long_as_its_rollouts_arrive() -> None:
    found = acting()
    for epoch, now in ((1, 0.0), (2, 1.0), (0, 2.0), (1, 5.0)):
        found.note(epoch, 0, now)
    found.forget(SPAN_S + 1.0)
    assert len(found) == 2, "0 is none that is known"
    found.forget(SPAN_S + 1.1)
    assert len(found) == 1
    found.forget(SPAN_S + 5.1)
    assert len(found) == 0


def test_a_peer_that_invents_brokers_does_not_make_it_grow_without_bound() -> None:
    found = acting()
    for epoch in range(1, 3 * MOST):
        found.note(epoch, 0, 0.0)
    assert len(found) == MOST


def test_a_divergence_is_the_mean_over_the_steps_of_the_newest_version_of_each() -> None:
    found, nan = acting(), float("nan")
    found.note(7, 3, 0.0)
    found.note(8, 4, 0.0)
    measured(found, [7, 8, 7, 9], [[3, 3], [3, 4], [2, 3], [1, 1]], [[1.0, nan], [9.0, 0.5], [9.0, 2.0], [5.0, 5.0]])
    assert found.news() == [[7, 3, 1.5], [8, 4, 0.5]], "however many environments each has"


def test_the_divergence_is_smoothed_until_another_version_acts() -> None:
    found = acting()
    found.note(7, 1, 0.0)
    for value in (1.0, 0.0, 0.0):
        measured(found, [7], [[1]], [[value]])
    assert found.news() == [[7, 1, 0.25]]
    found.note(7, 2, 0.0)
    assert found.news() == []
    assert found.page(5) == {"syncs": 2, "syncs_by_acting": {0: 2}, "lag_by_acting": {0: 3}, "divergence_by_acting": {}}


def test_a_version_that_was_not_published_yet_does_not_count_as_acting() -> None:
    found = acting()
    found.note(7, 10, 0.0)
    assert len(found) == 1
    found.note(7, 8, 0.0)
    measured(found, [7], [[8, 10]], [[0.5, 9.0]])
    assert found.news() == [[7, 8, 0.5]]
