"""The blocking client against servers that are absent, restarted or wrong."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from tests.build.envservers import running
from zerobeast.clients import env_client
from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.remote import part
from zerobeast.clients.remote.cluster import ClusterVectorEnv
from zerobeast.clients.remote.vector_env import RemoteVectorEnv
from zerobeast.common.errors import ConfigError, PeerLost, RemoteProtocolError
from zerobeast.common.transport import Context, Poller, ServerPort
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason
from zerobeast.common.wire.records import step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

CARTPOLE = {"id": "CartPole-v1"}
SPEC = EnvSpec("Fake-v0", ArraySpace.box((2,)), ArraySpace.discrete(2))


@contextmanager
def fake_server(context: Context, endpoint: str, answer: Any) -> Iterator[None]:
    """Answers every request with answer(header) -> (kind, body, frames)."""
    stopping = threading.Event()

    def serve() -> None:
        poller = Poller([port])
        while not stopping.is_set():
            poller.wait(0.02)
            while message := port.receive():
                header = message.header
                kind, body, frames = answer(header)
                port.send(Header(kind, header.sender, header.slot, 1, header.seq, body), *frames)
            port.departures()

    with closing(ServerPort(context, Plane.STEPS, endpoint)) as port:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()


def welcome_then(kind: Kind, body: tuple[Any, ...], *frames: Any) -> Any:
    def answer(header: Header) -> tuple[Kind, tuple[Any, ...], tuple[Any, ...]]:
        return (Kind.WELCOME, ({"env": SPEC.to_wire()},), ()) if header.kind is Kind.HELLO else (kind, body, frames)

    return answer


def test_an_absent_server_is_a_lost_peer_in_words(context: Context, ipc: str) -> None:
    with pytest.raises(PeerLost, match=r"no answer from the env-server at ipc://.* for 0.3 s"):
        EnvClient(context, ipc, CARTPOLE, 1, seed=0, timeout_s=0.3)


def test_a_server_that_stays_silent_is_reported_long_before_the_time_is_up(
    ipc: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env_client, "QUIET_S", 0.1)
    monkeypatch.setattr(part, "SILENCE_S", 0.1)
    silent = f"no answer from the env-server at {ipc} for 0.1 s"
    with pytest.raises(PeerLost):
        RemoteVectorEnv(ipc, "CartPole-v1", 1, timeout_s=0.4)
    with pytest.raises(PeerLost):
        ClusterVectorEnv([ipc], "CartPole-v1", 1, timeout_s=0.8)
    assert caplog.messages == [f"{silent}; it may take 0.4 s in all (timeout_s)", f"{silent}; further attempts follow"]


def test_a_refusal_is_a_configuration_error_in_words(context: Context, ipc: str) -> None:
    with running(ipc):
        with pytest.raises(
            ConfigError, match=r"env-server at .* refuses: env.id 'CartPol-v1' is unknown; did you mean CartPole-v1"
        ):
            EnvClient(context, ipc, {"id": "CartPol-v1"}, 1, seed=0)
        with pytest.raises(ConfigError, match="num_envs: Input should be greater than or equal to 1"):
            EnvClient(context, ipc, CARTPOLE, 0, seed=0)


def test_every_answer_is_a_new_array_and_an_action_out_of_range_is_refused(context: Context, ipc: str) -> None:
    with running(ipc), EnvClient(context, ipc, CARTPOLE, 2, seed=0) as client:
        first = client.reset()
        kept = first.copy()
        client.step([0, 1])
        assert (first == kept).all()
        with pytest.raises(ConfigError, match="action of environment 1 holds the choice 2, expected 0 to 1"):
            client.step([0, 2])


def test_a_server_that_restarts_is_a_lost_peer(context: Context, ipc: str) -> None:
    with running(ipc):
        client = EnvClient(context, ipc, CARTPOLE, 1, seed=0)
        client.reset()
    with running(ipc), pytest.raises(PeerLost, match="has lost this session"):
        client.step([0])
    client.close()


def test_an_invalid_answer_is_named(context: Context, ipc: str) -> None:
    rows = np.zeros(3, step_record(SPEC).dtype)
    numbers = rows["reward"][:2]
    cases: list[tuple[Any, Any, str]] = [
        ({}, (b"short",), "OBS: expected one frame of 2 step rows of 64 bytes"),
        ({}, (), "OBS: expected one frame of 2 step rows of 64 bytes"),
        ({}, (rows,), "OBS: expected one frame of 2 step rows of 64 bytes"),
        ({1: numbers}, (rows[:2],), "info 1 is no name"),
        ({"x": numbers, "_x": numbers}, (rows[:2],), "info '_x' are not 2 booleans"),
        ({"x": rows["reward"]}, (rows[:2],), "info 'x' is no array over 2 environments"),
    ]
    with fake_server(context, ipc, lambda header: welcome_then(Kind.OBS, ([], case[0]), *case[1])(header)):
        for case in cases:
            with EnvClient(context, ipc, {}, 2, seed=0) as client, pytest.raises(RemoteProtocolError, match=case[2]):
                client.reset()
            with pytest.raises(PeerLost, match="still owes the answer to an earlier request"):
                client.step([0, 0])
            client.close()


def test_invalid_episodes_are_left_out(context: Context, ipc: str) -> None:
    rows = np.zeros(2, step_record(SPEC).dtype)
    episodes = [["a", 1], [1.5, 3], 3, [float("nan"), 1], [1.0, 0]]
    with fake_server(context, ipc, welcome_then(Kind.OBS, (episodes, None), rows)):
        with EnvClient(context, ipc, {}, 2, seed=0) as client:
            client.reset()
            assert client.step([0, 0])[1] == [(1.5, 3)]


def test_a_session_lost_before_its_first_reset_is_reopened(context: Context, ipc: str) -> None:
    with running(ipc), EnvClient(context, ipc, {"id": "CartPole-v1"}, 2, seed=3) as client:
        first = client.reset(seed=5)
    with running(ipc):
        client = EnvClient(context, ipc, {"id": "CartPole-v1"}, 2, seed=3)
    with running(ipc), client:
        assert (client.reset(seed=5)["obs"] == first["obs"]).all()


def test_an_invalid_description_is_named_and_leaves_no_socket_open(context: Context, ipc: str) -> None:
    with (
        fake_server(context, ipc, lambda header: (Kind.WELCOME, ({"env": {"env_id": "A"}},), ())),
        pytest.raises(RemoteProtocolError, match="obs is None"),
    ):
        EnvClient(context, ipc, {}, 2, seed=0)


def test_messages_that_make_no_sense_are_ignored_until_the_timeout(context: Context, ipc: str) -> None:
    with (
        fake_server(context, ipc, welcome_then(Kind.ACK, (1, 1))),
        EnvClient(context, ipc, {}, 2, seed=0) as client,
    ):
        client.timeout_s = 0.3
        with pytest.raises(PeerLost):
            client.reset()


def test_a_busy_server_is_asked_again_later(context: Context, ipc: str) -> None:
    busy = iter([True])

    def answer(header: Header) -> Any:
        if header.kind is Kind.HELLO and next(busy, False):
            return Kind.ERROR, (str(Reason.BUSY), "full"), ()
        return welcome_then(Kind.OBS, ([],), np.ones(2, step_record(SPEC).dtype))(header)

    with fake_server(context, ipc, answer), EnvClient(context, ipc, {}, 2, seed=0) as client:
        assert client.reset()["reward"].tolist() == [1.0, 1.0]
