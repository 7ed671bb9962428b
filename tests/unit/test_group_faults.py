"""An env group against an env-server whose answers cannot be used. No sockets, no clock."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.test_group import CONFIG, SERVERS, TICK_S, Broker, EnvServer, Message, Server, World, world_in
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.hops import Hops
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import RESEND_LIMIT_S
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.waits import Wait, Waits

Spoil = Callable[[Message], Message]


def with_byte(field: str, value: int) -> Spoil:
    def spoil(message: Message) -> Message:
        message.frames[0][field].view(np.uint8)[1] = value
        return message

    return spoil


def with_value(field: str, value: float) -> Spoil:
    def spoil(message: Message) -> Message:
        message.frames[0][field][1] = value
        return message

    return spoil


def without_a_row(message: Message) -> Message:
    return Message(message.header, message.frames[0][:-1])


def without_rows(message: Message) -> Message:
    return Message(message.header)


FAULTS: list[tuple[Spoil, str, str]] = [
    (with_value("reward", float("nan")), "values", "reward of row 1 holds a value that is not finite"),
    (with_value("reward", float("inf")), "values", "reward of row 1 holds a value that is not finite"),
    (with_byte("terminated", 2), "values", "terminated of row 1 holds a boolean other than 0 and 1"),
    (with_byte("first", 255), "values", "first of row 1 holds a boolean other than 0 and 1"),
    (without_a_row, "payload", "expected one frame of 2 step rows of 64 bytes"),
    (without_rows, "payload", "expected one frame of 2 step rows of 64 bytes"),
]


class Spoiling(Server):
    """Spoils answers while it is told to, and repeats a spoilt one when it is asked again."""

    spoil: Spoil | None = None
    kind: Kind | None = None  #: requests whose answers are spoilt; None: all

    def do(self, header: Header, rows: Any) -> Message:
        message = super().do(header, rows)
        return self.spoil(message) if self.spoil and self.kind in (None, header.kind) else message


class FaultyBroker(Spoiling, Broker):
    pass


class Faulty(Spoiling, EnvServer):
    hellos = asked = 0

    def answer(self, header: Header, rows: Any) -> Message | None:
        self.asked += 1
        self.hellos += header.kind is Kind.HELLO
        found = super().answer(header, rows)
        if header.kind is Kind.BYE:
            assert not self.known, "only BYE of this session is sent"
            self.seq, self.age = 0, -1
        return found


FAULTY = {**SERVERS, Plane.STEPS: Faulty, Plane.INFERENCE: FaultyBroker}


def server_of(world: World) -> Faulty:
    return world.servers[Plane.STEPS]


def spoil_one(world: World, spoil: Spoil) -> int:
    """Have the env-server spoil answers until the group refuses one; returns how many HELLOs there were before."""
    server = server_of(world)
    server.spoil, before = spoil, server.hellos
    while not world.refused:
        world.turn()
    server.spoil = None
    return before


@pytest.mark.parametrize(("spoil", "reason", "sentence"), FAULTS)
def test_an_answer_that_cannot_be_used_costs_a_session_and_nothing_of_it_travels_on(
    spoil: Spoil, reason: str, sentence: str
) -> None:
    world = world_in(Wait.BROKER, FAULTY)
    before = spoil_one(world, spoil)
    world.goes_on()
    assert [error.reason for error in world.refused] == [reason]
    assert sentence in str(world.refused[0])
    assert server_of(world).hellos == before + 1
    assert not world.group.steps.stream.trouble
    assert all(np.isfinite(rows["reward"]).all() for _, _, rows in world.used)


@pytest.mark.parametrize("kind", [None, Kind.STEP], ids=["every answer", "every step"])
def test_a_server_that_sends_only_bad_answers_gets_hello_less_and_less_often(kind: Kind | None) -> None:
    world = world_in(Wait.BROKER, FAULTY)
    server = server_of(world)
    server.spoil, server.kind, server.asked = with_value("reward", float("nan")), kind, 0
    until = world.now + 120
    while world.now < until:
        world.turn()
    assert server.asked < 120
    assert len(world.refused) < 30
    assert "sends what cannot be used (OBS: reward of row 1" in world.group.steps.stream.trouble
    server.spoil = None
    for _ in range(int((RESEND_LIMIT_S + 5) / TICK_S)):
        world.turn()
    world.goes_on()
    assert not world.group.steps.stream.trouble


def with_core(message: Message) -> Message:
    for core in message.frames[1:]:
        core[1] = np.inf
    return message


@pytest.mark.parametrize(
    ("spoil", "reason", "sentence"),
    [
        (without_a_row, "payload", "bytes of act rows"),
        (with_value("logits", np.nan), "values", "logits of row 1 holds a value that is not finite"),
        (with_value("action", -1), "values", "action holds the choice -1, expected 0 to "),
        (with_core, "values", "a recurrent state is not finite"),
    ],
)
def test_an_act_that_cannot_be_used_costs_the_session_too(spoil: Spoil, reason: str, sentence: str) -> None:
    world = world_in(Wait.ENV, FAULTY)
    broker = world.servers[Plane.INFERENCE]
    broker.spoil = spoil
    while not world.refused:
        world.turn()
    broker.spoil = None
    world.goes_on()
    assert [error.reason for error in world.refused] == [reason]
    assert sentence in str(world.refused[0])


def test_impossible_episodes_are_counted_and_cost_nothing_else() -> None:
    good = [1.0, 3]
    bad = [["x", -3], [1.0], 7, [[1.0], 2], [float("nan"), 3], [float("inf"), 3], [1.0, 0], [1.0, -1], [1.0, True]]

    def with_episodes(message: Message) -> Message:
        header = message.header
        return Message(Header(header.kind, 1, 0, header.epoch, header.seq, ([good, *bad],)), *message.frames)

    world = world_in(Wait.BROKER, FAULTY)
    before = spoil_one(world, with_episodes)
    assert [error.reason for error in world.refused] == ["episodes"]
    assert f"{len(bad)} episodes" in str(world.refused[0])
    assert world.group.steps.episodes == [good]
    world.goes_on()
    assert server_of(world).hellos == before


def test_an_impossible_offer_ends_the_actor_with_a_sentence() -> None:
    group = EnvGroup(CONFIG, sender=1, slot=0, seed=0, waits=Waits(0.0, Hops("actor", 0.0)))
    welcome = Header(Kind.WELCOME, 1, 0, 5, 0, ({"env": {"env_id": "x"}},))
    with pytest.raises(ConfigError, match=r"env-server at .* offers an impossible 'env': obs is None, expected"):
        group.take(Plane.STEPS, Message(welcome), pytest.fail, 0.1)  # type: ignore[arg-type]
