"""An env group that waits for the policy that its last rollout led to."""

import pytest

from tests.unit.test_group import SYNCHRONOUS, WINDOW, T, World
from zerobeast.common.wire.messages import Plane
from zerobeast.services.actor.waits import Wait


def waiting_world() -> World:
    world = World(config=SYNCHRONOUS)
    world.stuck_learner = True
    for _ in range(60):
        world.turn()
    return world


def test_no_step_is_taken_while_everything_sent_waits_to_be_learned_from() -> None:
    world = waiting_world()
    assert world.group.waits.current is Wait.CREDIT
    assert world.group.rollouts.outbox.unacked == WINDOW
    assert world.steps == WINDOW * T + 1, "RESET and the steps of the rollouts that were sent"


def test_each_rollout_that_is_learned_from_makes_room_for_one() -> None:
    world = waiting_world()
    learner = world.servers[Plane.ROLLOUTS]
    for learned in range(1, 4):
        world.deliver(Plane.ROLLOUTS, learner.use())
        for _ in range(20):
            world.turn()
        assert world.group.waits.current is Wait.CREDIT
        assert world.steps == (WINDOW + learned) * T + 1
    world.goes_on()


def test_a_group_that_collects_ahead_plays_one_rollout_more() -> None:
    world = World()
    world.stuck_learner = True
    for _ in range(60):
        world.turn()
    assert world.steps == (WINDOW + 1) * T + 1


@pytest.mark.parametrize("plane", list(Plane)[:2], ids=lambda plane: plane.name)
def test_a_waiting_group_recovers_from_the_restart_of_a_server(plane: Plane) -> None:
    world = waiting_world()
    world.end(plane, politely=False)
    world.start(plane)
    world.goes_on()
