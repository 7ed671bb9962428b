"""Every row of the table that the docstring of Group draws, walked one message at a time."""

import inspect
import re
from collections.abc import Callable

import pytest

from tests.build.groups import SERVERS, SYNCHRONOUS, WINDOW, Learner, Message, Play, T, waiting
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


def reply(play: Play, plane: Plane) -> Message | None:
    """What the server says to the next message of the group."""
    server, work = play.server(plane), play.group.planes[plane].due(play.now)
    if work is None:
        return server.use() if isinstance(server, Learner) and not play.stuck_learner else None
    play.group.planes[plane].mark_sent(play.now)
    return server.answer(work[0], work[1][0] if work[1] else None)


def play_until(found: Callable[[Group], bool], play: Play | None = None) -> Play:
    """A play that goes on until this is found."""
    play = play or Play()
    for _ in range(200):
        for plane in SERVERS:
            if found(play.group):
                return play
            play.deliver(plane, reply(play, plane))
        play.now += 0.05
    raise AssertionError("never came there")


def greets(group: Group) -> bool:
    return group.rollouts.greets


def resets(group: Group) -> bool:
    return group.waits.current is Wait.ENV


def time_of(group: Group) -> int:
    return group.rollouts.builder.t


def stepping(play: Play | None = None, t: int = 0, unacked: int = 0) -> tuple[Play, Plane]:
    """A group about to see obs[t + 1], with `unacked` rollouts not yet acknowledged."""
    play = play or Play()
    play.stuck_learner = unacked > 0

    def found(group: Group) -> bool:
        known = group.waits.current is Wait.ENV and not group.steps.new
        return known and time_of(group) == t and group.rollouts.outbox.unacked == unacked

    return play_until(found, play), STEPS


def without(wait: Wait, plane: Plane) -> Play:
    play = waiting(wait)
    play.end(plane, politely=True)
    return play


def met_again() -> tuple[Play, Plane]:
    play = play_until(lambda group: group.waits.current is Wait.BROKER and time_of(group) > 0)
    play.end(INFERENCE, politely=True)
    play.start(INFERENCE)
    return play, INFERENCE


def credited(play: Play) -> tuple[Play, Plane]:
    play.stuck_learner = False
    return play, ROLLOUTS


#: (state, event, if) of a row -> a play in which the next message of this plane is that event
ROWS: dict[tuple[str, ...], Callable[[], tuple[Play, Plane]]] = {
    ("CONNECT", "all sessions open", "env session is new"): lambda: (play_until(greets), ROLLOUTS),
    ("CONNECT", "all sessions open", "env session is known"): met_again,
    ("ENV", "OBS", "env session is new"): lambda: (play_until(resets), STEPS),
    ("ENV", "OBS", "env session is known"): stepping,
    ("ENV", "env session lost", ""): lambda: (waiting(Wait.ENV), STEPS),
    ("BROKER", "ACT", "env session is new"): lambda: (without(Wait.BROKER, STEPS), INFERENCE),
    ("BROKER", "ACT", "env session is known"): lambda: (waiting(Wait.BROKER), INFERENCE),
    ("BROKER", "broker session lost", ""): lambda: (waiting(Wait.BROKER), INFERENCE),
    ("CREDIT", "ACK or WELCOME", "room in the window"): lambda: credited(waiting(Wait.CREDIT)),
    ("go on", "rollout complete", "no room"): lambda: stepping(Play(), T - 1, WINDOW),
    ("go on", "rollout complete", "room for one, in step"): lambda: stepping(Play(0, SYNCHRONOUS), T - 1, WINDOW - 1),
    ("go on", "rollout complete", "room"): lambda: stepping(Play(), T - 1),
    ("go on", "rollout incomplete", "no broker session"): lambda: (without(Wait.ENV, INFERENCE), STEPS),
    ("go on", "rollout incomplete", "env session is new"): lambda: credited(without(Wait.CREDIT, STEPS)),
    ("go on", "rollout incomplete", "both sessions known"): stepping,
}


def test_the_table_has_these_rows() -> None:
    assert [row[:3] for row in table()] == list(ROWS)


@pytest.mark.parametrize("row", table(), ids=lambda row: " ".join(row))
def test_a_row_does_what_it_lists(row: tuple[str, ...]) -> None:
    state, event, _, action, successor = row
    play, plane = ROWS[row[:3]]()
    group = play.group
    if state != "go on":
        assert group.waits.current.name == state
    pushed, t = group.rollouts.outbox.seq, 0 if state == "CONNECT" else time_of(group)
    if event.endswith("lost"):
        play.end(plane, politely=True)
    else:
        play.deliver(plane, reply(play, plane))
    if successor == "go on":  # nothing is in the way
        successor, action = "BROKER", f"{action}, INFER"
    assert group.waits.current.name == successor
    asked = {work[0].kind.name for end in (group.steps, group.inference) if (work := end.due(play.now))}
    assert asked - {"HELLO"} == set(re.findall("[A-Z]+", action))
    if "push" in action:
        assert group.rollouts.outbox.seq == pushed + 1
    if "record act" in action:
        assert (group.rollouts.builder.rows["value"][:, t] == group.inference.rows["value"]).all()
    if "record obs" in action:
        assert time_of(group) == t + 1
    if "begin" in action:
        assert time_of(group) == 0


@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_a_lost_session_stops_only_the_group_that_waits_for_its_answer(wait: Wait, plane: Plane) -> None:
    stops = (wait, plane) in ((Wait.ENV, STEPS), (Wait.BROKER, INFERENCE))
    assert without(wait, plane).group.waits.current is (Wait.CONNECT if stops else wait)
