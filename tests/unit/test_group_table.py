"""Every row of the table that the docstring of Group draws, walked one message at a time."""

import inspect
import re
from collections.abc import Callable

import pytest

from tests.unit.test_group import SERVERS, SYNCHRONOUS, WINDOW, Learner, Message, T, World, world_in
from zerobeast.common.wire.messages import Plane
from zerobeast.services.actor.group import Group
from zerobeast.services.actor.waits import Wait

Event = Callable[[], Message | None]
STEPS, INFERENCE, ROLLOUTS = SERVERS


def table() -> list[tuple[str, ...]]:
    """state, event, if, action, next of each row."""
    lines = inspect.getdoc(Group).splitlines()
    rule = next(line for line in lines if line.strip().startswith("---"))
    starts = [match.start() for match in re.finditer("-+", rule)]
    ends = [*starts[1:], None]
    rows = [line for line in lines if re.match(r"\s+(CONNECT|ENV|BROKER|CREDIT|go on)\s", line)]
    return [tuple(row[start:end].strip() for start, end in zip(starts, ends, strict=True)) for row in rows]


def reply(world: World, plane: Plane) -> Message | None:
    """What the server says to the next message of the group."""
    server, work = world.servers[plane], world.group.planes[plane].due(world.now)
    if work is None:
        return server.use() if isinstance(server, Learner) and not world.stuck_learner else None
    world.group.planes[plane].mark_sent(world.now)
    return server.answer(work[0], work[1][0] if work[1] else None)


def until(world: World, found: Callable[[Group], bool]) -> World:
    for _ in range(200):
        for plane in SERVERS:
            if found(world.group):
                return world
            world.deliver(plane, reply(world, plane))
        world.now += 0.05
    raise AssertionError("never came there")


def time_of(group: Group) -> int:
    return group.rollouts.builder._t


def stepping(world: World | None = None, t: int = 0, unacked: int = 0) -> tuple[World, Plane]:
    """A group about to see obs[t + 1], with `unacked` rollouts not yet acknowledged."""
    world = world or World()
    world.stuck_learner = unacked > 0

    def found(group: Group) -> bool:
        known = group.waits.current is Wait.ENV and not group.steps.new
        return known and time_of(group) == t and group.rollouts.outbox.unacked == unacked

    return until(world, found), STEPS


def greeting() -> tuple[World, Plane]:
    return until(World(), lambda group: group.rollouts.greets), ROLLOUTS


def resetting() -> tuple[World, Plane]:
    return until(World(), lambda group: group.waits.current is Wait.ENV), STEPS


def without(wait: Wait, plane: Plane) -> World:
    world = world_in(wait)
    world.end(plane, politely=True)
    return world


def met_again() -> tuple[World, Plane]:
    world = World()
    until(world, lambda group: group.waits.current is Wait.BROKER and time_of(group) > 0)
    world.end(INFERENCE, politely=True)
    world.start(INFERENCE)
    return world, INFERENCE


def credited(world: World) -> tuple[World, Plane]:
    world.stuck_learner = False
    return world, ROLLOUTS


def act_after_loss() -> tuple[World, Plane]:
    return without(Wait.BROKER, STEPS), INFERENCE


#: (state, event, if) of a row -> a world in which the next message of this plane is that event
ROWS: dict[tuple[str, ...], Callable[[], tuple[World, Plane]]] = {
    ("CONNECT", "all sessions open", "env session is new"): greeting,
    ("CONNECT", "all sessions open", "env session is known"): met_again,
    ("ENV", "OBS", "env session is new"): resetting,
    ("ENV", "OBS", "env session is known"): stepping,
    ("ENV", "env session lost", ""): lambda: (world_in(Wait.ENV), STEPS),
    ("BROKER", "ACT", "env session is new"): act_after_loss,
    ("BROKER", "ACT", "env session is known"): lambda: (world_in(Wait.BROKER), INFERENCE),
    ("BROKER", "broker session lost", ""): lambda: (world_in(Wait.BROKER), INFERENCE),
    ("CREDIT", "ACK or WELCOME", "room in the window"): lambda: credited(world_in(Wait.CREDIT)),
    ("go on", "rollout complete", "no room"): lambda: stepping(World(), T - 1, WINDOW),
    ("go on", "rollout complete", "room for one, in step"): lambda: stepping(World(0, SYNCHRONOUS), T - 1, WINDOW - 1),
    ("go on", "rollout complete", "room"): lambda: stepping(World(), T - 1),
    ("go on", "rollout incomplete", "no broker session"): lambda: (without(Wait.ENV, INFERENCE), STEPS),
    ("go on", "rollout incomplete", "env session is new"): lambda: credited(without(Wait.CREDIT, STEPS)),
    ("go on", "rollout incomplete", "both sessions known"): stepping,
}


def test_the_table_has_these_rows() -> None:
    assert [row[:3] for row in table()] == list(ROWS)


@pytest.mark.parametrize("row", table(), ids=lambda row: " ".join(row))
def test_a_row_does_what_it_lists(row: tuple[str, ...]) -> None:
    state, event, _, action, successor = row
    world, plane = ROWS[row[:3]]()
    group = world.group
    if state != "go on":
        assert group.waits.current.name == state
    pushed, t = group.rollouts.outbox.seq, 0 if state == "CONNECT" else time_of(group)
    if event.endswith("lost"):
        world.end(plane, politely=True)
    else:
        world.deliver(plane, reply(world, plane))
    if successor == "go on":  # nothing is in the way
        successor, action = "BROKER", f"{action}, INFER"
    assert group.waits.current.name == successor
    asked = {work[0].kind.name for end in (group.steps, group.inference) if (work := end.due(world.now))}
    assert asked - {"HELLO"} == set(re.findall("[A-Z]+", action))
    if "push" in action:
        assert group.rollouts.outbox.seq == pushed + 1
    if "record act" in action:
        assert (group.rollouts.builder._rows["value"][:, t] == group.inference.rows["value"]).all()
    if "record obs" in action:
        assert time_of(group) == t + 1
    if "begin" in action:
        assert time_of(group) == 0


@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_a_lost_session_stops_only_the_group_that_waits_for_its_answer(wait: Wait, plane: Plane) -> None:
    stops = (wait, plane) in ((Wait.ENV, STEPS), (Wait.BROKER, INFERENCE))
    assert without(wait, plane).group.waits.current is (Wait.CONNECT if stops else wait)
