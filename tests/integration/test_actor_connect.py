"""An actor whose servers are absent, several or at fault, and when a service has work to do, so that it can stall."""

import logging
import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.build.brokers import OpenStage
from tests.build.clients import ENV, OFFERS, T, answer
from tests.build.odd import ODD
from tests.build.planes import run_env_server
from tests.helpers import free_port, poll, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, ServerPort
from zerobeast.common.wire.messages import ANSWERS, Header, Kind, Plane
from zerobeast.common.wire.stream import HELLO_PERIOD_S, LASTING_S, RESEND_LIMIT_S, Reply
from zerobeast.services.actor.service import Actor
from zerobeast.services.actor.waits import TIMEOUTS, Timeouts
from zerobeast.services.envserver.service import EnvServer

TIMEOUT_S = 40.0
PLANES = (Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS)
EPOCH, TURN_S = 5, 0.05
PATIENT = Timeouts(absent=1e6)  #: on a busy machine a connection takes more turns than the clock here allows


class World:
    """A clock that stands still unless it is moved, and a resolver; actors that live by them."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.now = stack, 1000.0
        self.hosts = {"localhost": ["127.0.0.1"], "both": ["127.0.0.2", "127.0.0.3"]}  #: addresses by name
        self.in_vain: list[str] = []  #: failed look-ups so far

    def resolve(self, place: Endpoint) -> list[Endpoint]:
        if place.host not in self.hosts:
            self.in_vain.append(place.host)
            raise PeerLost("cannot resolve the name")
        return [Endpoint(host, place.port) for host in self.hosts[place.host]]

    def actor(self, host: str, port: int = 0, *, one: str = "", timeouts: Timeouts = TIMEOUTS, **kwargs: Any) -> Actor:
        """An actor of two groups, or with a single environment of the id `one`, whose servers are at this host."""
        port = port or free_port(9)
        places = zip(("envserver", "broker", "learner"), range(port, port + 9, 3), strict=True)
        tree: dict[str, Any] = {role: {"endpoint": f"tcp://{host}:{place}"} for role, place in places}
        tree["learner"]["unroll_length"] = T
        tree["actor"] = {"connect_timeout_s": TIMEOUT_S} | ({"env_groups": 1, "envs_per_group": 1} if one else {})
        config = RunConfig.model_validate(tree | {"env": {"id": one or "CartPole-v1", "kwargs": kwargs}})
        actor = Actor(config, Instance(index=0), timeouts=timeouts, clock=lambda: self.now, resolve=self.resolve)
        actor.open()
        return self.stack.enter_context(closing(actor))

    def turn(self, actor: Actor, seconds: float = 0.0, wait_s: float = 0.0) -> None:
        """One turn of an actor `seconds` later, in which it waits so long for messages."""
        self.now += seconds
        poll(actor, wait_s)
        actor.tick(self.now)

    def connected(self, actor: Actor, seconds: float = 0.0) -> bool:
        """Whether the actor has a connection to every server after `seconds`."""
        self.turn(actor, seconds)
        return all(servers.ports for servers in actor.servers)

    def hosts_sessions(self, server: EnvServer, sessions: int, actor: Actor) -> bool:
        """Whether a server has this many sessions after one more turn of the actor."""
        self.turn(actor, 0.02, 0.01)
        return bool(server.report()["sessions"] == sessions)


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def test_names_that_do_not_resolve_are_looked_up_now_and_then_without_spinning(world: World) -> None:
    actor = world.actor("somewhere.invalid")
    wait_until(lambda: len(world.in_vain) == len(PLANES))
    for _ in range(3):
        world.turn(actor)
    assert len(world.in_vain) == len(PLANES)
    world.turn(actor, TIMEOUTS.retry_lookup)
    wait_until(lambda: len(world.in_vain) == 2 * len(PLANES))
    assert math.isinf(actor.deadline()), "what is due cannot leave"
    world.turn(actor, TIMEOUTS.silent)
    world.hosts["somewhere.invalid"] = ["127.0.0.1"]
    wait_until(lambda: world.connected(actor, 0.1))
    world.turn(actor)
    assert actor.report()["reconnects"] == 0, "there was no connection, and the server has only just been asked"


def test_an_actor_reconnects_to_silent_servers_until_it_gives_up_though_their_name_is_gone(world: World) -> None:
    actor = world.actor("localhost")
    wait_until(lambda: world.connected(actor))
    del world.hosts["localhost"]
    for count in range(1, 4):
        world.now += TIMEOUTS.silent + 1
        actor.tick(world.now)
        poll(actor, 0)
        wait_until(lambda: world.in_vain)
        assert (actor.report()["reconnects"], actor.report()["moves"]) == (count, 0)
    with pytest.raises(PeerLost, match="env-server at tcp://"):
        world.turn(actor, TIMEOUT_S)


def test_an_actors_own_standstill_is_not_taken_for_silence_of_its_servers(world: World) -> None:
    actor = world.actor("127.0.0.1")
    actor.turn()
    world.now += TIMEOUT_S + 1
    actor.turn()
    assert actor.report()["reconnects"] == 0
    for _ in range(int(TIMEOUT_S)):
        world.now += 1
        actor.turn()
    assert actor.report()["reconnects"] > 0
    world.now += 1
    with pytest.raises(PeerLost, match="env-server"):
        actor.turn()


def test_groups_spread_over_the_servers_of_a_name_and_leave_one_that_ends(world: World) -> None:
    port = free_port(9)
    with run_env_server(f"tcp://127.0.0.2:{port}") as here, ExitStack() as ending:
        there = ending.enter_context(run_env_server(f"tcp://127.0.0.3:{port}"))
        actor = world.actor("both", port, timeouts=replace(PATIENT, silent=1e6))
        wait_until(lambda: all([world.hosts_sessions(server, 1, actor) for server in (here, there)]))
        wait_until(lambda: world.turn(actor, 0.02, 0.01) or all(group.steps.stream.open for group in actor.groups))
        ending.close()
        wait_until(lambda: world.hosts_sessions(here, 2, actor))
        assert actor.report()["moves"] == 1


def test_an_unreachable_server_is_left_soon_and_groups_go_to_one_that_joins(world: World) -> None:
    port = free_port(9)
    with run_env_server(f"tcp://127.0.0.2:{port}") as here:  # nothing listens at 127.0.0.3
        actor, started = world.actor("both", port), world.now
        wait_until(lambda: world.hosts_sessions(here, 2, actor))
        assert TIMEOUTS.absent < world.now - started < TIMEOUTS.silent
        world.hosts["both"] = ["127.0.0.2"]
        world.turn(actor, TIMEOUTS.lookup)
        with run_env_server(f"tcp://127.0.0.4:{port}") as there:
            world.hosts["both"] = ["127.0.0.2", "127.0.0.4"]
            world.now += TIMEOUTS.lookup
            wait_until(lambda: world.hosts_sessions(there, 1, actor))
            wait_until(lambda: world.hosts_sessions(here, 1, actor))


def test_a_server_that_is_still_making_environments_is_waited_for(world: World) -> None:
    port = free_port(9)
    with run_env_server(f"tcp://127.0.0.1:{port}"):
        actor = world.actor("127.0.0.1", port, one=ODD, make_s=2.0)
        stream = actor.groups[0].steps.stream
        signs = 0

        def turn() -> bool:
            nonlocal signs
            before = stream.heard_at
            world.turn(actor, 0.0, 0.05)
            signs += stream.heard_at > before
            # a sign of life is worth a second; a HELLO that could not leave is sent again
            world.now += 1.0 if stream.heard_at > before else 0.1 * HELLO_PERIOD_S
            return stream.open

        wait_until(lambda: turn() or signs)
        begun, reconnects = world.now, actor.report()["reconnects"]
        wait_until(turn)
        assert world.now - begun > TIMEOUTS.silent, "no client would wait that long in silence"
        assert actor.report()["reconnects"] == reconnects


class Scene:
    """An actor and its three servers in one thread, of which the env-server can be at fault."""

    def __init__(self, world: World, context: Context) -> None:
        self.world, self.asked = world, 0
        self.reward, self.epoch = 0.0, EPOCH  #: of the answers of the env-server
        first = free_port(9)
        endpoints = zip(PLANES, range(first, first + 9, 3), strict=True)
        self.ports = [ServerPort(context, plane, f"tcp://127.0.0.1:{port}") for plane, port in endpoints]
        for port in self.ports:
            world.stack.callback(port.close)
        self.actor = world.actor("127.0.0.1", first, one=ENV.env_id)

    def turn(self) -> None:
        self.world.turn(self.actor, TURN_S, 0.001)
        for port in self.ports:
            port.changes()
            while message := port.receive():
                self.asked += port.plane is Plane.STEPS
                if message.header.kind is not Kind.BYE:
                    self.reply(port, message.header)

    def reply(self, port: ServerPort, asked: Header) -> None:
        if asked.kind is Kind.HELLO:
            port.send(replace(asked, kind=Kind.WELCOME, body=(dict(OFFERS[port.plane]),), epoch=EPOCH))
            return
        (body, frames), epoch = answer(asked), EPOCH
        if port.plane is Plane.STEPS:
            frames[0]["reward"], epoch = self.reward, self.epoch
        port.send(replace(asked, kind=ANSWERS.get(asked.kind, Kind.ACK), body=body, epoch=epoch), *frames)

    def play(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            self.turn()

    @property
    def page(self) -> dict[str, Any]:
        return self.actor.report()

    def trains(self) -> None:
        """Wait until rollouts flow."""
        before = self.page["rollouts_sent"]
        wait_until(lambda: self.turn() or self.page["rollouts_sent"] > before + 2)


@pytest.fixture
def scene(context: Context, world: World) -> Scene:
    found = Scene(world, context)
    found.trains()
    return found


def test_a_repeated_fault_is_on_the_page_and_once_in_the_log(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert scene.page["trouble"] == ""
    scene.reward, scene.asked = np.nan, 0
    with caplog.at_level(logging.WARNING):
        scene.play(TIMEOUT_S - 5)
    assert scene.asked < 60
    assert all(part in scene.page["trouble"] for part in ("reward", "env-server at tcp://"))
    assert scene.page["setbacks"] > 3
    assert set(scene.page["refused_by_reason"]) == {"values"}
    assert sum("less often" in record.message for record in caplog.records) == 1
    assert len(caplog.records) < 5
    scene.reward = 0.0
    scene.play(RESEND_LIMIT_S + LASTING_S + 1)
    scene.trains()
    assert scene.page["trouble"] == ""


def test_an_actor_ends_when_for_its_timeout_no_answer_could_be_used(scene: Scene) -> None:
    for scene.reward in (np.nan, 0.0) * (int(TIMEOUT_S + 30) // 10):
        scene.play(5.0)
    scene.reward = np.nan
    with pytest.raises(PeerLost, match="reward of row 0"):
        scene.play(TIMEOUT_S + 15)


def test_answers_to_no_request_are_not_reported_as_silence(scene: Scene) -> None:
    scene.epoch = EPOCH + 1
    scene.play(TIMEOUTS.silent + 1)
    assert "no usable answer" in scene.page["trouble"]
    with pytest.raises(PeerLost, match="env-server at tcp://"):
        scene.play(TIMEOUT_S)


def test_a_broker_has_work_while_requests_wait_for_weights(open_stage: OpenStage) -> None:
    the = open_stage(versions=())
    client = the.client()
    client.until(Reply.WELCOME)
    assert the.broker.idle()
    client.request()
    wait_until(lambda: (client.turn(), not the.broker.idle())[1])
    the.learner.publish(1)
    client.until(Reply.ANSWER)
    assert the.broker.idle()


def test_an_env_server_has_work_while_an_environment_owes_a_step(context: Context, ipc: str) -> None:
    with run_env_server(ipc) as server:
        assert server.idle()
        with EnvClient(context, ipc, {"id": ODD, "kwargs": {"at": 1, "deed": "hang"}}, 1, seed=0) as client:
            client.reset()
            assert server.idle()
            client.timeout_s = 0.5
            with pytest.raises(PeerLost):
                client.step([0])
            assert not server.idle()
        wait_until(server.idle)


def test_an_actor_has_no_work_while_its_environments_are_made_but_has_while_nobody_answers(ipc: str) -> None:
    config = {"envserver": {"endpoint": ipc}, "actor": {"env_groups": 1}, "env": {"id": ODD, "kwargs": {"make_s": 0.2}}}
    actor = Actor(RunConfig.model_validate(config), Instance(index=0))
    actor.open()
    with closing(actor):
        for _ in range(3):
            poll(actor, 0.01)
            actor.tick(actor.clock())
            assert not actor.idle()
        with run_env_server(ipc, workers=1) as server:
            wait_until(lambda: (poll(actor, 0.01), actor.idle() and bool(server.table))[1])
            assert server.idle()
            wait_until(lambda: (poll(actor, 0.01), actor.groups[0].steps.stream.open)[1])
            assert not actor.idle(), "now it waits for a broker"
