"""What an env-server refuses, and sessions that take long to make or only greet; a contract has the rest."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.build.envs import COUNTER
from tests.build.planes import run_env_server
from tests.helpers import bring, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import BeastError, ConfigError, LocalProtocolError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire import ArraySpace, action_record, session
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES, Frames, Header, Kind, Plane, Reason
from zerobeast.services.envserver import sessions
from zerobeast.services.envserver.backend import GROUP, Backend, VectorRequest
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.service import EnvServer
from zerobeast.testing.driven_peers import Peer, env_server

INFO = "tests.build.envs:Info-v0"
N = 5  #: makes two parts of Atari games, and two slices of worker processes


@pytest.fixture
def server(ipc: str) -> Iterator[EnvServer]:
    with run_env_server(ipc, in_process=True) as server:
        yield server


def peer_of(endpoint: str) -> Peer:
    return Peer(env_server(endpoint, {"id": COUNTER, "kwargs": {"length": 100}}))


def actions(*choices: int) -> np.ndarray:
    rows = np.zeros(len(choices), action_record(ArraySpace.discrete(10)).dtype)
    rows["action"] = choices
    return rows


def test_what_no_client_may_ask_is_refused_and_counted_and_the_session_goes_on(server: EnvServer, ipc: str) -> None:
    bad_steps: list[Frames] = [(actions(10, 0),), (actions(0, -1),), (actions(0),), (actions(0, 0, 0),)]
    bad_steps += [(actions(0, 0), b"more"), (b"",), ()]
    with peer_of(ipc) as peer:
        peer.open_session()
        peer.push(2)  # a step before the first reset
        assert peer.answer(2).header.body[0] == Reason.TERMS
        peer.ask(1)
        before = server.report()["refused"]
        for number, frames in enumerate(bad_steps, start=1):
            peer.send(peer.header(Kind.STEP, number + 1), frames)
            header = peer.answer(number + 1).header
            assert (header.kind, header.body[0]) == (Kind.ERROR, Reason.TERMS)
            assert server.report()["refused"] == before + number
            peer.ask(number + 1)
        assert server.report()["agent_steps"] == 2 * len(bad_steps)
        answers: list[tuple[Kind, tuple[Any, ...], Frames]] = [(Kind.WELCOME, ({},), ()), (Kind.OBS, ([],), (b"rows",))]
        for kind, body, frames in answers:  # are the server's to give
            peer.send(peer.header(kind, body=body), frames)
            assert kind.name in peer.answer(0).header.body[1]
        peer.ask(len(bad_steps) + 2)


def test_a_process_that_ends_in_a_reset_is_replaced_by_one_like_it(context: Context, ipc: str, tmp_path: Path) -> None:
    file, twin = tmp_path / "gone", gymnasium.make_vec(INFO, N, vectorization_mode="sync")
    with (
        run_env_server(ipc, workers=2) as server,
        EnvClient(context, ipc, {"id": INFO}, N, seed=0, infos=True) as client,
    ):
        client.reset()
        rows = client.reset(seed=9, options={"start": 4, "exit_once": str(file)})
        assert file.exists()
        assert rows["obs"].tolist() == [[4]] * N
        twin.reset(seed=9, options={"start": 4})
        rows, _, infos = client.step([0] * N)
        np.testing.assert_array_equal(rows["obs"], twin.step(np.zeros(N, np.int64))[0])
        assert infos["pair"].shape == (N, 2)
        assert client.reset()["obs"].tolist() == [[0]] * N, "options are those of one reset"
        wait_until(lambda: server.report()["env_errors"] > 0)
        assert server.report()["infos_left_out"] >= N, "a text of each"


@pytest.mark.parametrize(
    ("env_id", "wrong", "error", "named"),
    [
        ("PongNoFrameskip-v4", {"options": {}}, ConfigError, "options"),
        (INFO, {"seed": 2**31}, ConfigError, "seed"),
        (INFO, {"seed": ["x"]}, ConfigError, r"seed\[0\]"),
        (INFO, {"options": {"start": bytes(MAX_OPTIONS_BYTES)}}, ConfigError, str(MAX_OPTIONS_BYTES)),
        (INFO, {"options": {"start": object()}}, LocalProtocolError, "object"),
        (INFO, {"options": {"start": "x"}}, ConfigError, "ValueError"),  # which ends the session
    ],
)
def test_invalid_seeds_and_options_are_refused(
    context: Context, ipc: str, env_id: str, wrong: dict[str, Any], error: type[Exception], named: str
) -> None:
    with run_env_server(ipc, in_process=True), EnvClient(context, ipc, {"id": env_id}, 1, seed=0) as client:
        with pytest.raises(error, match=named):
            client.reset(**wrong)


def test_an_invalid_mask_is_refused_and_the_session_goes_on(context: Context, ipc: str) -> None:
    some = np.arange(N) == 2
    with run_env_server(ipc, in_process=True):
        with EnvClient(context, ipc, {"id": "CartPole-v1"}, N, seed=0) as client:
            client.reset()
            for wrong in ({"mask": some}, {"seed": [*range(N)]}):  # they are reset all together
                with pytest.raises(ConfigError, match="reset_m"):
                    client.reset(**wrong)
            assert client.step([0] * N)[0]["reward"].all()
        with EnvClient(context, ipc, {"id": "CartPole-v1"}, N, seed=0, reset_masks=True) as client:
            with pytest.raises(ConfigError, match="RESET"):
                client.reset(mask=some)
            client.reset()
            for mask in (np.zeros(N, np.bool_), np.ones(N + 1, np.bool_), np.ones(N, np.int64)):
                with pytest.raises(ConfigError, match=f"mask: .* {N} booleans"):
                    client.reset(mask=mask)
            assert client.reset(mask=some)["first"].all(), "all are at their first"


AT_ONCE = 4  #: environments that the backend below makes in a turn


begun: list[int] = []  #: seeds of all slow environments whose making has begun


def made_slowly(num_envs: int, seed: int) -> InlineEnvs:
    begun.append(seed)
    time.sleep(0.002)
    return NativeVectorEnv(EnvConfig(id="CartPole-v1"), num_envs, seed)


def make_vec(request: VectorRequest) -> InlineVectorEnv:
    return InlineVectorEnv(made_slowly, request.num_envs, request.seed, min(AT_ONCE, request.num_envs))


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
    begun.clear()
    monkeypatch.syspath_prepend(tmp_path)
    with bring(tmp_path, GROUP, {"slow-1.0": f"slow/* = {__name__}:BACKEND\nbroken/* = {__name__}:BROKEN"}):
        yield


def waiting(server: EnvServer, endpoint: str, seed: int, num_envs: int, making: int) -> Peer:
    """A client that is told to wait while so many sessions are made."""
    terms = {"env": {"id": "slow/CartPole-v1"}, "num_envs": num_envs, "seed": seed}
    peer = Peer(replace(env_server(endpoint, {}), terms=terms))
    peer.send_until(Header(Kind.HELLO, peer.port.sender, body=(terms,)), (), lambda heard: heard.kind is Kind.HERE)
    wait_until(lambda: server.report()["sessions_making"] == making)
    return peer


@pytest.mark.parametrize("how", ["BYE", "its connection ends"])
def test_a_client_that_leaves_while_it_waits_costs_nothing(ipc: str, how: str) -> None:
    with run_env_server(ipc) as server, waiting(server, ipc, 0, 4096, making=1) as first:
        with waiting(server, ipc, 5000, 1, making=2) as second:
            if how == "BYE":
                second.bye()
                wait_until(lambda: server.report()["sessions_making"] == 1)
        wait_until(lambda: server.report()["sessions_making"] == 1)
        first.close()
        wait_until(lambda: len(server.table) == 0)
    assert 0 <= max(begun) < 4096, "only the first was ever begun, and left half made"
    assert len(begun) < 4096 / AT_ONCE


def test_a_session_in_the_making_is_not_closed_as_unused(ipc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "UNUSED_S", -1.0)
    monkeypatch.setattr(session, "SWEEP_PERIOD_S", 0.0)
    with run_env_server(ipc) as server, waiting(server, ipc, 0, 200, making=1) as peer:
        peer.send(Header(Kind.HELLO, peer.port.sender, body=(peer.server.terms,)))
        wait_until(lambda: len(server.table) == 0)
    assert len(begun) == 200 / AT_ONCE, "it is made once and to the end, and only then looks unused"


@pytest.mark.parametrize("at", ["collect", "reset"])
def test_whatever_a_backend_raises_ends_its_own_session_alone(context: Context, ipc: str, at: str) -> None:
    env = {"id": "broken/A-v0", "kwargs": {"at": at}}
    with run_env_server(ipc) as server, EnvClient(context, ipc, {"id": "CartPole-v1"}, 1, seed=0) as other:
        with pytest.raises(BeastError, match=f"KeyError: '{at}'"), EnvClient(context, ipc, env, 1, seed=0) as client:
            client.reset()
        other.reset()
        assert len(server.table) == 1


STEPS: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "num_envs": 1, "seed": 0}


def test_a_storm_of_greetings_starts_few_processes_at_a_time(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_IN_THE_MAKING", 2)
    with run_env_server(endpoint, workers=1) as server, ExitStack() as stack:
        ports = [ClientPort(context, Plane.STEPS, endpoint, random_id()) for _ in range(12)]
        most = 0

        def all_wait() -> bool:
            nonlocal most
            for port in ports:
                port.send(Header(Kind.HELLO, port.sender, body=({**STEPS, "env": {"id": COUNTER}},)))
            making = [held.state.env for held in list(server.table) if held.welcome is None]
            most = max(most, sum(bool(env.files) for env in making))
            return len(server.table) == len(ports)

        for port in ports:
            stack.callback(port.close)
        wait_until(all_wait)
        stack.close()
        wait_until(lambda: len(server.table) == 0)
        assert most <= 2


def reply(port: ClientPort, **changes: Any) -> Header:
    """The answer to HELLO, which is repeated until there is one."""

    def answer() -> Header | None:
        port.send(Header(Kind.HELLO, port.sender, body=({**STEPS, **changes},)))
        heard = port.receive()
        return heard.header if heard and heard.header.kind is not Kind.HERE else None

    return wait_until(answer)


def test_a_server_without_file_descriptors_refuses_and_goes_on(context: Context, endpoint: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with run_env_server(endpoint, workers=1) as server, ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(ClientPort(context, Plane.STEPS, endpoint, random_id()))) for _ in range(2)
        )
        assert reply(first).kind is Kind.WELCOME
        wait_until(lambda: second.send(Header(Kind.BYE, second.sender)) and server.port.hears(second.sender))
        taken = {int(file) for file in os.listdir("/proc/self/fd")}
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(set(range(len(taken) + 1)) - taken), limits[1]))
        try:
            refused = reply(second, env={"id": COUNTER})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert refused.body[0] == Reason.ENVIRONMENT
        # a HELLO that was still in flight has opened a session after all
        wait_until(lambda: second.send(Header(Kind.BYE, second.sender)) and len(server.table) == 1)
