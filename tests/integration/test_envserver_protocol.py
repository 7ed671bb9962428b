"""What an env-server refuses and why; the contract of a plane has what it does with messages of any kind."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.build.envs import COUNTER
from tests.build.envservers import running
from tests.helpers import wait_until
from zerobeast.common.wire.messages import Frames, Kind, Reason
from zerobeast.common.wire.records import action_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.services.envserver import sessions
from zerobeast.services.envserver.service import EnvServer
from zerobeast.testing.served import Peer, env_server


@pytest.fixture
def server(ipc: str) -> Iterator[EnvServer]:
    with running(ipc) as server:
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
        peer.welcomed()
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


def test_environments_that_cannot_be_hosted_are_refused(server: EnvServer, ipc: str) -> None:
    cases: list[tuple[dict[str, Any], Reason, str]] = [
        ({"env": {"id": "CartPol-v1"}}, Reason.ENVIRONMENT, "CartPole-v1?"),
        ({"env": {"id": COUNTER, "kwargs": {"x": 1}}}, Reason.ENVIRONMENT, "'x'"),
        ({"env": {"id": "A", "frame_skp": 4}}, Reason.TERMS, "env.frame_skp"),
    ]
    with peer_of(ipc) as peer:
        for peer.slot, (changes, reason, named) in enumerate(cases):
            header = peer.hello(**changes)
            assert (header.kind, header.body[0]) == (Kind.ERROR, reason)
            assert named in header.body[1]
        wait_until(lambda: len(server.table) == 0)


@pytest.mark.parametrize(("most", "settings"), [(1, {}), (1024, {"max_envs": 3}), (1024, {"max_workers": 1})], ids=str)
def test_a_full_server_answers_busy(
    ipc: str, monkeypatch: pytest.MonkeyPatch, most: int, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", most)
    with running(ipc, **settings) as server, peer_of(ipc) as peer:
        peer.welcomed()
        peer.slot = 1
        refusal = peer.hello()
        assert (refusal.kind, refusal.body[0], len(server.table)) == (Kind.ERROR, Reason.BUSY, 1)
        assert server.report()["refused_by_reason"].keys() == {"busy"}
