"""Environments that take long to make: no client waits in silence, and none is made in vain."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from tests.build.envservers import running
from tests.helpers import bring, free_port, poll, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import BeastError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire import session
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.services.actor.service import Actor
from zerobeast.services.actor.waits import TIMEOUTS
from zerobeast.services.envserver.backend import GROUP, Backend, VectorRequest
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.service import EnvServer

FASTER = 8  #: factor by which the actors' clock outruns wall time
MAKE_S = 0.1  #: in wall time
ACTORS = GROUPS = 8
SLOW = "slow/CartPole-v1"
AT_ONCE = 4  #: environments that the backend below makes in a turn


class Thread:
    """Environments that the server makes in its own thread; `begun` lists the seeds of all whose making has begun."""

    newest: "Thread"

    def __init__(self, make_s: float) -> None:
        self.make_s = make_s
        self.begun: list[int] = []

    def make(self, num_envs: int, seed: int) -> InlineEnvs:
        self.begun.append(seed)
        time.sleep(self.make_s)
        return NativeVectorEnv(EnvConfig(id="CartPole-v1"), num_envs, seed)


def make_vec(request: VectorRequest) -> InlineVectorEnv:
    return InlineVectorEnv(Thread.newest.make, request.num_envs, request.seed, min(AT_ONCE, request.num_envs))


class Broken(InlineVectorEnv):
    """Raises what a backend should not, in the call that its configuration names, and when it is closed."""

    def __init__(self, request: VectorRequest) -> None:
        self.at = request.config.kwargs["at"]
        super().__init__(partial(NativeVectorEnv, EnvConfig(id="CartPole-v1")), 1, 0, 1)

    def reset(self, *_: object) -> None:
        raise KeyError("reset")

    def collect(self) -> bool:
        return super().collect() if self.at == "reset" else bool({}[self.at])

    def close(self) -> None:
        raise KeyError("close")


BACKEND, BROKEN = Backend(make_vec=make_vec), Backend(make_vec=Broken)


@pytest.fixture(autouse=True)
def _brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    with bring(tmp_path, GROUP, {"slow-1.0": f"slow/* = {__name__}:BACKEND\nbroken/* = {__name__}:BROKEN"}):
        yield


@pytest.mark.parametrize("servers", [1, 4])
def test_sessions_that_take_longer_to_make_than_the_silence_timeout_are_each_made_once(servers: int) -> None:
    Thread.newest, port = Thread(MAKE_S), free_port(2)
    hosts = [f"127.0.0.{2 + n}" for n in range(servers)]
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(running(f"tcp://{host}:{port}"))
        actors = [stack.enter_context(closing(open_actor(n, port, hosts))) for n in range(ACTORS)]

        def welcomed() -> bool:
            for actor in actors:
                poll(actor, 0.0)
                actor.tick(actor.clock())
            return all(group.steps.stream.open for actor in actors for group in actor.groups)

        wait_until(welcomed)
    begun = Thread.newest.begun
    assert len(begun) == len(set(begun)) == ACTORS * GROUPS
    assert servers > 1 or len(begun) * MAKE_S * FASTER > 4 * TIMEOUTS.silent


def open_actor(index: int, port: int, hosts: list[str]) -> Actor:
    """Open an actor whose broker and learner are absent, and whose env-servers are at all these hosts."""
    settings = {
        "envserver": {"endpoint": f"tcp://all:{port}"},
        "actor": {"env_groups": GROUPS, "envs_per_group": 1, "connect_timeout_s": 1000.0},
        "env": {"id": SLOW},
    }
    actor = Actor(
        RunConfig.model_validate(settings),
        Instance(index=index),
        clock=lambda: FASTER * time.monotonic(),
        resolve=lambda place: [Endpoint(host, place.port) for host in hosts],
    )
    actor.open()
    return actor


@pytest.fixture
def thread() -> Thread:
    Thread.newest = Thread(make_s=0.002)
    return Thread.newest


def greeting(context: Context, endpoint: str, seed: int, num_envs: int) -> tuple[ClientPort, Callable[[], Kind | None]]:
    """A client, and a function that sends its HELLO and returns the kind of the answer, if there is one."""
    port = ClientPort(context, Plane.STEPS, endpoint, random_id())

    def greet() -> Kind | None:
        port.send(Header(Kind.HELLO, port.sender, body=({"env": {"id": SLOW}, "num_envs": num_envs, "seed": seed},)))
        answer = port.receive()
        return answer.header.kind if answer is not None and answer.header.seq else None

    return port, greet


def queued(server: EnvServer, greet: Callable[[], Kind | None], count: int) -> None:
    wait_until(lambda: greet() is Kind.HERE and server.report()["sessions_making"] == count)


@pytest.mark.parametrize("how", ["BYE", "its connection ends"])
def test_a_client_that_waits_gets_here_and_costs_nothing_if_it_leaves(
    context: Context, ipc: str, thread: Thread, how: str
) -> None:
    with running(ipc) as server:
        first, greet_first = greeting(context, ipc, 0, 4096)
        queued(server, greet_first, 1)
        second, greet_second = greeting(context, ipc, 5000, 1)
        queued(server, greet_second, 2)
        if how == "BYE":
            second.send(Header(Kind.BYE, second.sender))  # it has no epoch yet
        else:
            second.close()
        wait_until(lambda: server.report()["sessions_making"] == 1)
        first.close()
        wait_until(lambda: len(server.table) == 0)
        second.close()
    assert 0 <= max(thread.begun) < 4096, "only the first was ever begun, and left half made"
    assert len(thread.begun) < 4096 / AT_ONCE


def test_a_session_in_the_making_is_not_closed_as_unused(
    context: Context, ipc: str, thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "UNUSED_S", -1.0)
    monkeypatch.setattr(session, "SWEEP_PERIOD_S", 0.0)
    with running(ipc) as server:
        port, greet = greeting(context, ipc, 0, 200)
        queued(server, greet, 1)
        wait_until(lambda: len(server.table) == 0)
        port.close()
    assert len(thread.begun) == 200 / AT_ONCE, "it is made to the end, and only then looks unused"


@pytest.mark.parametrize("at", ["collect", "reset"])
def test_whatever_a_backend_raises_ends_its_own_session_alone(context: Context, ipc: str, at: str) -> None:
    env = {"id": "broken/A-v0", "kwargs": {"at": at}}
    with running(ipc) as server, EnvClient(context, ipc, {"id": "CartPole-v1"}, 1, seed=0) as other:
        with (
            pytest.raises(BeastError, match=f"KeyError: '{at}'"),
            EnvClient(context, ipc, env, 1, seed=0) as client,
        ):
            client.reset()
        other.reset()
        assert len(server.table) == 1
