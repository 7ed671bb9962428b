"""An env group against servers whose answers cannot be used. No sockets, no clock."""

import numpy as np
import pytest

from tests.build.groups import CONFIG, TICK_S, Message, Play, Spoil, waiting
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.hops import Hops
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import RESEND_LIMIT_S
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.waits import Wait, Waits


def with_value(field: str, value: float, kind: type = float) -> Spoil:
    """Row 1 with this value, or, as uint8, with this byte in place of a bool."""

    def spoil(message: Message) -> Message:
        rows = message.frames[0][field]
        (rows.view(np.uint8) if kind is np.uint8 else rows)[1] = value
        return message

    return spoil


def without_a_row(message: Message) -> Message:
    return Message(message.header, message.frames[0][:-1])


def with_core(message: Message) -> Message:
    for core in message.frames[1:]:
        core[1] = np.inf
    return message


STEPS, INFERENCE = Plane.STEPS, Plane.INFERENCE
FAULTS: list[tuple[Plane, Spoil, str]] = [
    (STEPS, with_value("reward", float("nan")), "values"),
    (STEPS, with_value("reward", float("inf")), "values"),
    (STEPS, with_value("terminated", 2, np.uint8), "values"),
    (STEPS, without_a_row, "payload"),
    (STEPS, lambda message: Message(message.header), "payload"),
    (INFERENCE, without_a_row, "payload"),
    (INFERENCE, with_value("logits", np.nan), "values"),
    (INFERENCE, with_value("action", -1), "values"),
    (INFERENCE, with_core, "values"),
]


def spoil_one(play: Play, spoil: Spoil, plane: Plane = Plane.STEPS) -> int:
    """Have a server spoil answers until the group refuses one; returns how many HELLOs there were before."""
    server = play.server(plane)
    server.spoil, before = spoil, server.hellos
    while not play.refused:
        play.turn()
    server.spoil = None
    return int(before)


@pytest.mark.parametrize(("plane", "spoil", "reason"), FAULTS)
def test_an_answer_that_cannot_be_used_costs_a_session_and_nothing_of_it_travels_on(
    plane: Plane, spoil: Spoil, reason: str
) -> None:
    play = waiting(Wait.BROKER if plane is STEPS else Wait.ENV)
    before = spoil_one(play, spoil, plane)
    play.goes_on()
    assert [error.reason for error in play.refused] == [reason]
    assert play.server(plane).hellos == before + 1
    assert not play.group.planes[plane].stream.trouble
    assert all(np.isfinite(rows["reward"]).all() for _, _, rows in play.used)


@pytest.mark.parametrize("kind", [None, Kind.STEP], ids=["every answer", "every step"])
def test_a_server_that_sends_only_bad_answers_gets_hello_less_and_less_often(kind: Kind | None) -> None:
    play = waiting(Wait.BROKER)
    server = play.server(STEPS)
    server.spoil, server.spoilt, server.asked = with_value("reward", float("nan")), kind, 0
    until = play.now + 120
    while play.now < until:
        play.turn()
    assert server.asked < 120
    assert len(play.refused) < 30
    assert play.group.steps.stream.trouble
    server.spoil = None
    for _ in range(int((RESEND_LIMIT_S + 5) / TICK_S)):
        play.turn()
    play.goes_on()
    assert not play.group.steps.stream.trouble


def test_impossible_episodes_are_counted_and_cost_nothing_else() -> None:
    good = [1.0, 3]
    bad = [["x", -3], [1.0], 7, [[1.0], 2], [float("nan"), 3], [float("inf"), 3], [1.0, 0], [1.0, -1], [1.0, True]]

    def with_episodes(message: Message) -> Message:
        header = message.header
        return Message(Header(header.kind, 1, 0, header.epoch, header.seq, ([good, *bad],)), *message.frames)

    play = waiting(Wait.BROKER)
    before = spoil_one(play, with_episodes)
    assert [error.reason for error in play.refused] == ["episodes"]
    assert play.group.steps.episodes == [good]
    play.goes_on()
    assert play.server(STEPS).hellos == before


def test_an_impossible_offer_ends_the_actor_with_a_sentence() -> None:
    group = EnvGroup(CONFIG, sender=1, slot=0, seed=0, waits=Waits(0.0, Hops("actor", 0.0)))
    welcome = Header(Kind.WELCOME, 1, 0, 5, 0, ({"env": {"env_id": "x"}},))
    with pytest.raises(ConfigError, match="env-server at"):
        group.take(Plane.STEPS, Message(welcome), pytest.fail, 0.1)  # type: ignore[arg-type]
