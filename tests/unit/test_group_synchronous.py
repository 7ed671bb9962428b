"""An env group that waits for the policy that its last rollout led to."""

import pytest

from tests.build.groups import SYNCHRONOUS, WINDOW, Play, T
from zerobeast.common.wire.messages import Plane
from zerobeast.services.actor.waits import Wait


def synchronous() -> Play:
    play = Play(config=SYNCHRONOUS)
    play.stuck_learner = True
    for _ in range(60):
        play.turn()
    return play


def test_no_step_is_taken_while_everything_sent_waits_to_be_learned_from() -> None:
    play = synchronous()
    assert play.group.waits.current is Wait.CREDIT
    assert play.group.rollouts.outbox.unacked == WINDOW
    assert play.steps == WINDOW * T + 1, "RESET and the steps of the rollouts that were sent"


def test_each_rollout_that_is_learned_from_makes_room_for_one() -> None:
    play = synchronous()
    learner = play.server(Plane.ROLLOUTS)
    for learned in range(1, 4):
        play.deliver(Plane.ROLLOUTS, learner.use())
        for _ in range(20):
            play.turn()
        assert play.group.waits.current is Wait.CREDIT
        assert play.steps == (WINDOW + learned) * T + 1
    play.goes_on()


def test_a_group_that_collects_ahead_plays_one_rollout_more() -> None:
    play = Play()
    play.stuck_learner = True
    for _ in range(60):
        play.turn()
    assert play.steps == (WINDOW + 1) * T + 1


@pytest.mark.parametrize("plane", list(Plane)[:2], ids=lambda plane: plane.name)
def test_a_waiting_group_recovers_from_the_restart_of_a_server(plane: Plane) -> None:
    play = synchronous()
    play.end(plane, politely=False)
    play.start(plane)
    play.goes_on()
