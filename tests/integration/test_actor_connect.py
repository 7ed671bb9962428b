"""An actor whose servers are absent or several: it looks for them now and then, and gives up in time."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.build.envservers import running
from tests.build.odd import ODD
from tests.helpers import free_port, poll, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, ServerPort
from zerobeast.common.wire.messages import Plane, Reason
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.common.wire.stream import HELLO_PERIOD_S
from zerobeast.services.actor.service import Actor
from zerobeast.services.actor.waits import TIMEOUTS, Timeouts
from zerobeast.services.envserver.service import EnvServer

TIMEOUT_S = 60.0
CARTPOLE_SPEC = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
PLANES = len([Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS])


class Time:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Names:
    """A resolver: the addresses of each name, and the failed look-ups so far."""

    def __init__(self) -> None:
        self.hosts = {"localhost": ["127.0.0.1"], "both": ["127.0.0.2", "127.0.0.3"]}
        self.in_vain: list[str] = []

    def __call__(self, place: Endpoint) -> list[Endpoint]:
        if place.host not in self.hosts:
            self.in_vain.append(place.host)
            raise PeerLost("cannot resolve the name")
        return [Endpoint(host, place.port) for host in self.hosts[place.host]]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def make_actor(time: Time, names: Names) -> Iterator[Callable[..., Actor]]:
    with ExitStack() as actors:

        def make(host: str, port: int = 0, timeouts: Timeouts = TIMEOUTS, **settings: object) -> Actor:
            port = port or free_port(9)
            places = {"envserver": port, "broker": port + 3, "learner": port + 6}
            endpoints = {role: {"endpoint": f"tcp://{host}:{place}"} for role, place in places.items()}
            limit = {"actor": {"connect_timeout_s": TIMEOUT_S}}
            config = RunConfig.model_validate({"env": {"id": "CartPole-v1"}, **endpoints, **limit, **settings})
            actor = Actor(config, Instance(index=0), timeouts=timeouts, clock=time, resolve=names)
            actor.open()
            actors.enter_context(closing(actor))
            return actor

        yield make


def connected(actor: Actor, time: Time, seconds: float = 0.0) -> bool:
    """Whether the actor has a connection to every server after `seconds`."""
    time.now += seconds
    actor.tick(time())
    return all(servers.ports for servers in actor.servers)


def test_names_that_do_not_resolve_are_looked_up_now_and_then_without_spinning(
    make_actor: Callable[..., Actor], time: Time, names: Names
) -> None:
    actor = make_actor("somewhere.invalid")
    wait_until(lambda: len(names.in_vain) == PLANES)
    for _ in range(3):
        poll(actor, 0)
        actor.tick(time())
    assert len(names.in_vain) == PLANES
    time.now += TIMEOUTS.retry_lookup
    actor.tick(time())
    wait_until(lambda: len(names.in_vain) == 2 * PLANES)
    assert math.isinf(actor.deadline()), "what is due cannot leave"
    time.now += TIMEOUT_S
    with pytest.raises(PeerLost, match="cannot resolve"):
        wait_until(lambda: actor.tick(time()))


def test_a_name_that_never_resolved_has_no_connection_to_make_anew(
    make_actor: Callable[..., Actor], time: Time, names: Names
) -> None:
    actor = make_actor("somewhere.invalid")
    for _ in range(20):
        time.now += 0.1 * TIMEOUTS.silent
        actor.tick(time())
    assert actor.report()["reconnects"] == 0
    names.hosts["somewhere.invalid"] = ["127.0.0.1"]
    wait_until(lambda: connected(actor, time, 0.1))
    actor.tick(time())
    assert actor.report()["reconnects"] == 0, "it has only just been asked"


def test_an_actor_reconnects_to_silent_servers_until_it_gives_up(make_actor: Callable[..., Actor], time: Time) -> None:
    actor = make_actor("127.0.0.1")
    poll(actor, 0)
    time.now += TIMEOUTS.silent + 1
    actor.tick(time())
    assert actor.report()["reconnects"] == 1
    assert actor.report()["moves"] == 0
    time.now += TIMEOUT_S
    with pytest.raises(PeerLost, match="env-server at tcp://"):
        actor.tick(time())


def test_a_full_server_is_named_as_full_and_its_connection_is_kept(
    make_actor: Callable[..., Actor], time: Time, context: Context
) -> None:
    port = free_port(9)
    with closing(ServerPort(context, Plane.STEPS, f"tcp://127.0.0.1:{port}")) as server:
        actor = make_actor("127.0.0.1", port)

        def refused() -> bool:
            time.now += HELLO_PERIOD_S
            poll(actor, 0.01)
            while message := server.receive():
                server.error(message.header, Reason.BUSY, "it hosts enough", epoch=1)
            return all(group.steps.stream.busy for group in actor.groups)

        wait_until(refused)
        time.now += TIMEOUTS.silent + 1
        actor.tick(time())
        assert actor.report()["reconnects"] == 0
        time.now += TIMEOUT_S
        with pytest.raises(PeerLost, match="it hosts enough"):
            actor.tick(time())


def test_an_actors_own_standstill_is_not_taken_for_silence_of_its_servers(
    make_actor: Callable[..., Actor], time: Time
) -> None:
    actor = make_actor("127.0.0.1")
    actor.turn()
    time.now += TIMEOUT_S + 1
    actor.turn()
    assert actor.report()["reconnects"] == 0
    for _ in range(int(TIMEOUT_S)):
        time.now += 1
        actor.turn()
    assert actor.report()["reconnects"] > 0
    time.now += 1
    with pytest.raises(PeerLost, match="env-server"):
        actor.turn()


def test_a_silent_server_whose_name_is_gone_may_still_come_back(
    make_actor: Callable[..., Actor], time: Time, names: Names
) -> None:
    actor = make_actor("localhost")
    wait_until(lambda: connected(actor, time))
    del names.hosts["localhost"]
    for count in range(1, 4):
        time.now += TIMEOUTS.silent + 1
        actor.tick(time())
        poll(actor, 0)
        wait_until(lambda: names.in_vain)
        assert actor.report()["reconnects"] == count
    assert time.now < TIMEOUT_S + actor.started_at


PATIENT = Timeouts(absent=1e6)  #: on a busy machine a connection takes more turns than the clock here allows


def hosts(server: EnvServer, sessions: int, actor: Actor, time: Time) -> bool:
    """Whether a server has this many sessions after one more turn of the actor."""
    time.now += 0.02
    poll(actor, 0.01)
    actor.tick(time())
    return bool(server.report()["sessions"] == sessions)


def test_groups_spread_over_the_servers_of_a_name_and_leave_one_that_ends(
    make_actor: Callable[..., Actor], time: Time, names: Names
) -> None:
    port = free_port(9)
    with running(f"tcp://127.0.0.2:{port}") as here, ExitStack() as ending:
        there = ending.enter_context(running(f"tcp://127.0.0.3:{port}"))
        actor = make_actor("both", port, timeouts=replace(PATIENT, silent=1e6))
        wait_until(lambda: all([hosts(server, 1, actor, time) for server in (here, there)]))
        wait_until(lambda: hosts(here, 1, actor, time) and all(group.steps.stream.open for group in actor.groups))
        ending.close()
        wait_until(lambda: hosts(here, 2, actor, time))
        assert actor.report()["moves"] == 1


def test_an_unreachable_server_is_left_soon(make_actor: Callable[..., Actor], time: Time, names: Names) -> None:
    port = free_port(9)
    with running(f"tcp://127.0.0.2:{port}") as here:  # nothing listens at 127.0.0.3
        actor = make_actor("both", port)
        started = time.now
        wait_until(lambda: hosts(here, 2, actor, time))
        assert TIMEOUTS.absent < time.now - started < TIMEOUTS.silent


def test_groups_go_to_a_server_that_joins(make_actor: Callable[..., Actor], time: Time, names: Names) -> None:
    port = free_port(9)
    names.hosts["both"] = ["127.0.0.2"]
    with running(f"tcp://127.0.0.2:{port}") as here:
        actor = make_actor("both", port)
        wait_until(lambda: hosts(here, 2, actor, time))
        with running(f"tcp://127.0.0.3:{port}") as there:
            names.hosts["both"] = ["127.0.0.2", "127.0.0.3"]
            time.now += TIMEOUTS.lookup
            wait_until(lambda: hosts(there, 1, actor, time))
            wait_until(lambda: hosts(here, 1, actor, time))


def test_a_server_that_is_still_making_environments_is_waited_for(make_actor: Callable[..., Actor], time: Time) -> None:
    port = free_port(9)
    env = {"id": ODD, "kwargs": {"make_s": 6.0}}
    with running(f"tcp://127.0.0.1:{port}"):
        actor = make_actor("127.0.0.1", port, env=env, actor={"env_groups": 1, "envs_per_group": 1})
        stream = actor.groups[0].steps.stream
        heard = 0

        def turn() -> bool:
            nonlocal heard
            before = stream.heard_at
            poll(actor, 0.05)
            actor.tick(time())
            told = stream.heard_at > before
            heard += told
            time.now += 1.0 if told else 0.1 * HELLO_PERIOD_S  # a HELLO that could not leave is sent again
            return stream.open

        wait_until(lambda: turn() or heard)
        begun, reconnects = time.now, actor.report()["reconnects"]
        wait_until(turn)
        assert time.now - begun > TIMEOUTS.silent, "no client would wait that long in silence"
        assert actor.report()["reconnects"] == reconnects


def test_if_every_server_is_slow_a_group_stays_longer_with_each_move(
    make_actor: Callable[..., Actor], time: Time, context: Context
) -> None:
    port = free_port(9)
    with ExitStack() as ports:
        for host in ("127.0.0.2", "127.0.0.3"):  # accept messages and answer nothing
            ports.enter_context(closing(ServerPort(context, Plane.STEPS, f"tcp://{host}:{port}")))
        actor = make_actor("both", port, timeouts=PATIENT, actor={"env_groups": 1, "connect_timeout_s": 1e6})
        wait_until(lambda: actor.tick(time()) or poll(actor, 0.01) or actor.servers[0].ports)
        start, moved = time.now, [0.0]
        while time.now < start + 30 * TIMEOUTS.silent:
            time.now += 0.25
            poll(actor, 0.0)
            actor.tick(time())
            for thread in threading.enumerate():
                if thread.name == "lookup":  # a look-up takes no time on this clock
                    thread.join()
            actor.awake_since = start
            if len(moved) <= actor.report()["moves"]:
                moved.append(time.now - start)
        stays = [after - before for before, after in pairwise(moved)]
        assert stays[-2:] == pytest.approx([8 * TIMEOUTS.silent, 8 * TIMEOUTS.silent], abs=1.0)
        assert len(stays) <= 6
