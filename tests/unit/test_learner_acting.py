"""How many brokers act, as far as rollouts say."""

import pytest

from zerobeast.services.learner.acting import MOST, SPAN_S, ActingProcesses

pytestmark = pytest.mark.unit


def test_brokers_count_for_as_long_as_rollouts_of_theirs_come() -> None:
    found = ActingProcesses()
    for acting, now in ((1, 0.0), (2, 1.0), (0, 2.0), (1, 5.0)):
        found.note(acting, now)
    found.forget(SPAN_S + 1.0)
    assert len(found) == 2, "0 is none that is known"
    found.forget(SPAN_S + 1.1)
    assert len(found) == 1
    found.forget(SPAN_S + 5.1)
    assert len(found) == 0


def test_a_peer_that_makes_them_up_does_not_make_it_grow() -> None:
    found = ActingProcesses()
    for acting in range(1, 3 * MOST):
        found.note(acting, 0.0)
    assert len(found) == MOST
