"""An actor whose servers are absent, several or at fault: it looks for them, gives up in time, and goes on."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.build.envservers import running
from tests.build.odd import ODD
from tests.helpers import free_port, poll, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, ServerPort
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.records import act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.common.wire.stream import HELLO_PERIOD_S, LASTING_S, RESEND_LIMIT_S
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.service import Actor
from zerobeast.services.actor.waits import TIMEOUTS, Timeouts
from zerobeast.services.envserver.service import EnvServer

TIMEOUT_S = 60.0
PLANES = len([Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS])


@dataclass
class Time:
    """A clock that stands still unless it is moved."""

    now: float = 1000.0

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
    time.now += TIMEOUTS.silent
    actor.tick(time())
    names.hosts["somewhere.invalid"] = ["127.0.0.1"]
    wait_until(lambda: connected(actor, time, 0.1))
    actor.tick(time())
    assert actor.report()["reconnects"] == 0, "there was no connection, and the server has only just been asked"


def test_an_actor_reconnects_to_silent_servers_until_it_gives_up_though_their_name_is_gone(
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
        assert (actor.report()["reconnects"], actor.report()["moves"]) == (count, 0)
    time.now += TIMEOUT_S
    with pytest.raises(PeerLost, match="env-server at tcp://"):
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
        signs = 0

        def turn() -> bool:
            nonlocal signs
            before = stream.heard_at
            poll(actor, 0.05)
            actor.tick(time())
            signs += stream.heard_at > before
            # a sign of life is worth a second; a HELLO that could not leave is sent again
            time.now += 1.0 if stream.heard_at > before else 0.1 * HELLO_PERIOD_S
            return stream.open

        wait_until(lambda: turn() or signs)
        begun, reconnects = time.now, actor.report()["reconnects"]
        wait_until(turn)
        assert time.now - begun > TIMEOUTS.silent, "no client would wait that long in silence"
        assert actor.report()["reconnects"] == reconnects


ENV = EnvSpec("Masked-v0", ArraySpace.box((4,)), ArraySpace.discrete(2), action_mask=True)
POLICY = PolicySpec(logits_and_value(2), 0)
N, EPOCH, TURN_S = 2, 5, 0.02

Frames = tuple[Any, ...]
Fault = Callable[[Header], tuple[Header, Frames]]


def obs(request: Header, *, reward: float = 0.0, legal: int = 1, **changes: Any) -> tuple[Header, Frames]:
    rows = np.zeros(N, step_record(ENV).dtype)
    rows["first"], rows["reward"][-1] = request.kind is Kind.RESET, reward
    rows["action_mask"], rows["action_mask"][-1] = True, legal
    return replace(request, kind=Kind.OBS, body=([],), **changes), (rows,)


def answer(request: Header) -> tuple[Header, Frames]:
    """A good answer, whichever server is asked."""
    terms = {"env": ENV.to_wire(), "policy": POLICY.to_wire(), "window": 2}
    others: dict[Kind, tuple[Kind, tuple[Any, ...], Frames]] = {
        Kind.HELLO: (Kind.WELCOME, (terms,), ()),
        Kind.INFER: (Kind.ACT, (0,), (np.zeros(N, act_record(ENV, POLICY).dtype),)),
        Kind.ROLLOUT: (Kind.ACK, (request.seq, 2), ()),
    }
    if request.kind not in others:
        return obs(request)
    kind, body, frames = others[request.kind]
    return replace(request, kind=kind, body=body, epoch=EPOCH), frames


class Scene:
    """An actor and its three servers in one thread, under a clock that stands still unless it is moved."""

    def __init__(self, context: Context, folder: str, stack: ExitStack) -> None:
        self.now, self.asked = 0.0, 0
        self.fault: Fault | None = None  #: instead of the answers of the env-server
        roles = {"envserver": Plane.STEPS, "broker": Plane.INFERENCE, "learner": Plane.ROLLOUTS}
        settings: dict[str, Any] = {role: {"endpoint": f"ipc://{folder}/{role}"} for role in roles}
        self.ports = [ServerPort(context, plane, settings[role]["endpoint"]) for role, plane in roles.items()]
        for port in self.ports:
            stack.callback(port.close)
        settings["learner"]["unroll_length"] = 4
        settings["actor"] = {"env_groups": 1, "envs_per_group": N, "connect_timeout_s": TIMEOUT_S}
        self.actor = Actor(RunConfig.model_validate(settings), Instance(index=0), clock=lambda: self.now)
        self.actor.open()
        stack.enter_context(closing(self.actor))

    def turn(self) -> None:
        self.now += TURN_S
        poll(self.actor, 0.001)
        self.actor.tick(self.now)
        for port in self.ports:
            port.changes()
            while message := port.receive():
                steps, kind = port.plane is Plane.STEPS, message.header.kind
                self.asked += steps
                if kind is not Kind.BYE:
                    faulty = self.fault if steps and kind is not Kind.HELLO else None
                    header, frames = (faulty or answer)(message.header)
                    port.send(header, *frames)

    def play(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.turn()

    @property
    def page(self) -> dict[str, Any]:
        return self.actor.report()

    def trains(self) -> None:
        """Wait until rollouts flow."""
        before = self.page["rollouts_sent"]
        wait_until(lambda: self.turn() or self.page["rollouts_sent"] > before + 2)


@pytest.fixture
def scene(context: Context, tmp_path: Any) -> Iterator[Scene]:
    with ExitStack() as stack:
        found = Scene(context, str(tmp_path), stack)
        found.trains()
        yield found


def test_a_fault_that_repeats_is_on_the_page_and_once_in_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    assert scene.page["trouble"] == ""
    scene.fault, scene.asked = lambda asked: obs(asked, legal=0), 0
    with caplog.at_level(logging.WARNING):
        scene.play(TIMEOUT_S - 5)
    assert scene.asked < 60
    assert "action_mask" in scene.page["trouble"]
    assert "env-server at ipc://" in scene.page["trouble"]
    assert scene.page["setbacks"] > 3
    assert set(scene.page["refused_by_reason"]) == {"values"}
    assert sum("less often" in record.message for record in caplog.records) == 1
    assert len(caplog.records) < 5
    scene.fault = None
    scene.play(RESEND_LIMIT_S + LASTING_S + 1)
    scene.trains()
    assert scene.page["trouble"] == ""


def test_an_actor_ends_after_a_minute_of_answers_that_cannot_be_used(scene: Scene) -> None:
    scene.fault = lambda asked: obs(asked, reward=np.nan if scene.now % 10 < 5 else 0.0)
    scene.play(TIMEOUT_S + 30)
    scene.fault = lambda asked: obs(asked, reward=np.nan)
    with pytest.raises(PeerLost, match="reward of row 1"):
        scene.play(TIMEOUT_S + 15)


def test_answers_to_no_request_are_not_reported_as_silence(scene: Scene) -> None:
    scene.play(1.0)
    scene.fault = lambda asked: obs(asked, epoch=EPOCH + 1)
    scene.play(TIMEOUTS.silent + 1)
    assert "no usable answer" in scene.page["trouble"]
    with pytest.raises(PeerLost, match="env-server at ipc://"):
        scene.play(TIMEOUT_S)
