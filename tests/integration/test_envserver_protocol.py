"""How an env-server handles messages that are repeated, late, foreign or garbage."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from tests.build.envs import COUNTER
from tests.build.envservers import running
from tests.helpers import wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport import ClientPort, Context, Poller, random_id
from zerobeast.common.wire import session
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.envserver import sessions as module
from zerobeast.services.envserver.service import EnvServer

TERMS: dict[str, Any] = {"env": {"id": COUNTER}, "num_envs": 2, "seed": 0}


class Process:
    """A client that may send anything."""

    def __init__(self, context: Context, endpoint: str) -> None:
        self.port = ClientPort(context, Plane.STEPS, endpoint, random_id())
        self.poller = Poller([self.port])
        self.epoch = 0

    def send(self, kind: Kind, *frames: Any, seq: int = 0, slot: int = 0, body: tuple[Any, ...] = ()) -> None:
        header = Header(kind, self.port.sender, slot, self.epoch, seq, body)
        wait_until(lambda: self.port.send(header, *frames))

    def receive(self, slot: int = 0) -> tuple[Header, list[bytes]] | None:
        """The next message for a slot, apart from signs of life, if one comes soon."""
        self.poller.wait(0.2)
        while message := self.port.receive():
            if message.header.slot == slot and message.header.kind is not Kind.HERE:
                return message.header, message.frames()
        return None

    def hello(self, slot: int = 0, **changes: Any) -> Header:
        """The first answer to a HELLO, which is repeated until one comes."""

        def greeted() -> tuple[Header, list[bytes]] | None:
            self.send(Kind.HELLO, slot=slot, body=({**TERMS, **changes},))
            return self.receive(slot)

        header, _ = wait_until(greeted)
        self.epoch = header.epoch
        return header

    def ask(self, kind: Kind, *frames: Any, seq: int, slot: int = 0) -> tuple[Header, list[bytes]]:
        """The answer to one request; late answers to HELLO are skipped."""
        self.send(kind, *frames, seq=seq, slot=slot)
        while True:
            header, rest = wait_until(lambda: self.receive(slot))
            if header.kind is not Kind.WELCOME:
                return header, rest


@pytest.fixture
def server(ipc: str) -> Iterator[EnvServer]:
    with running(ipc) as server:
        yield server


@pytest.fixture
def peer(context: Context, server: EnvServer, ipc: str) -> Iterator[Process]:
    peer = Process(context, ipc)
    yield peer
    peer.port.close()


def actions(*choices: int) -> np.ndarray:
    rows = np.zeros(len(choices), action_record(EnvSpec.from_wire(COUNTER_SPEC).action).dtype)
    rows["action"] = choices
    return rows


SAME: dict[str, Any] = {"sizes": [], "narrow": False}
BARE = {**SAME, "low": [], "high": []}
COUNTER_SPEC = {
    "env_id": COUNTER,
    "obs": {"kind": "box", "dtype": "<i8", "shape": [2], "low": [0.0], "high": [1000.0], **SAME, "start": []},
    "action": {"kind": "discrete", "dtype": "<i8", "shape": [], **BARE, "sizes": [10], "start": [100]},
    "frame_stack": 1,
    "frame_skip": 1,
    "action_mask": False,
}


def counts(frames: list[bytes]) -> list[int]:
    rows = np.frombuffer(frames[0], step_record(EnvSpec.from_wire(COUNTER_SPEC)).dtype)
    return rows["obs"][:, 0].tolist()


def test_hello_is_answered_with_the_environments_description_however_often_it_is_sent(
    server: EnvServer, peer: Process
) -> None:
    assert peer.hello().body == ({"env": COUNTER_SPEC},)
    assert peer.hello().body == ({"env": COUNTER_SPEC},)
    assert len(server.table) == 1


def test_a_repeated_request_gets_the_same_answer_and_nothing_happens_twice(server: EnvServer, peer: Process) -> None:
    peer.hello()
    assert counts(peer.ask(Kind.RESET, seq=1)[1]) == [0, 0]
    first = peer.ask(Kind.STEP, actions(1, 2), seq=2)
    assert counts(first[1]) == [1, 1]
    assert peer.ask(Kind.STEP, actions(1, 2), seq=2) == first
    assert peer.ask(Kind.STEP, actions(9, 9), seq=2) == first, "the number decides, not the payload"
    assert counts(peer.ask(Kind.STEP, actions(1, 2), seq=3)[1]) == [2, 2]
    wait_until(lambda: server.report()["agent_steps"] == 4)


def test_a_request_repeated_before_its_answer_is_answered_with_here(
    server: EnvServer, peer: Process, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    peer.hello(env={"id": COUNTER, "kwargs": {"block_file": str(lock)}})
    peer.ask(Kind.RESET, seq=1)

    def told() -> Header | None:
        peer.send(Kind.STEP, actions(0, 0), seq=2)
        peer.poller.wait(0.2)
        return found.header if (found := peer.port.receive()) and found.header.seq == 2 else None

    assert wait_until(told) == Header(Kind.HERE, peer.port.sender, 0, peer.epoch, 2)
    lock.unlink()
    assert counts(peer.ask(Kind.STEP, actions(0, 0), seq=2)[1]) == [1, 1]


def test_a_late_request_is_ignored_and_a_welcome_has_the_position_of_the_session(peer: Process) -> None:
    peer.hello()
    peer.ask(Kind.RESET, seq=1)
    peer.ask(Kind.STEP, actions(0, 0), seq=2)
    peer.send(Kind.STEP, actions(0, 0), seq=1)
    assert counts(peer.ask(Kind.STEP, actions(0, 0), seq=3)[1]) == [2, 2]
    assert peer.hello().seq == 3


def test_slots_of_one_client_are_separate_sessions(server: EnvServer, peer: Process) -> None:
    peer.hello(slot=0)
    peer.hello(slot=1)
    peer.ask(Kind.RESET, seq=1, slot=0)
    peer.ask(Kind.RESET, seq=1, slot=1)
    assert counts(peer.ask(Kind.STEP, actions(0, 0), seq=2, slot=0)[1]) == [1, 1]
    assert len(server.table) == 2
    peer.send(Kind.BYE, slot=0)
    wait_until(lambda: len(server.table) == 1)
    assert counts(peer.ask(Kind.STEP, actions(0, 0), seq=2, slot=1)[1]) == [1, 1]


def test_a_request_without_a_session_of_this_start_is_refused(peer: Process) -> None:
    peer.hello()
    peer.epoch += 1
    assert peer.ask(Kind.RESET, seq=1)[0].body[0] == Reason.UNKNOWN_SESSION
    peer.epoch -= 1
    peer.send(Kind.BYE)
    for kind in (Kind.RESET, Kind.STEP):
        header, _ = peer.ask(kind, seq=1)
        assert (header.kind, header.body[0], header.seq) == (Kind.ERROR, Reason.UNKNOWN_SESSION, 1)


def test_a_bad_action_is_refused_and_counted_and_the_session_goes_on(server: EnvServer, peer: Process) -> None:
    cases: list[tuple[Any, ...]] = [(actions(10, 0),), (actions(0, -1),), (actions(0),), (actions(0, 0, 0),)]
    cases += [(actions(0, 0), b"more"), (b"",), ()]
    peer.hello(env={"id": COUNTER, "kwargs": {"length": 100}})
    header, _ = peer.ask(Kind.STEP, actions(0, 0), seq=1)
    assert (header.body[0], "RESET" in header.body[1]) == (Reason.TERMS, True)
    peer.ask(Kind.RESET, seq=1)
    before = server.report()["refused"]
    for number, frames in enumerate(cases, start=1):
        header, _ = peer.ask(Kind.STEP, *frames, seq=number + 1)
        assert (header.kind, header.body[0], header.seq) == (Kind.ERROR, Reason.TERMS, number + 1)
        assert server.report()["refused"] == before + number
        assert counts(peer.ask(Kind.STEP, actions(0, 0), seq=number + 1)[1]) == [number] * 2


def test_environments_that_cannot_be_hosted_are_refused(server: EnvServer, peer: Process) -> None:
    cases: list[tuple[dict[str, Any], Reason, str]] = [
        ({"env": {"id": "CartPol-v1"}}, Reason.ENVIRONMENT, "CartPole-v1?"),
        ({"env": {"id": COUNTER, "kwargs": {"x": 1}}}, Reason.ENVIRONMENT, "'x'"),
        ({"env": {"id": "A", "frame_skp": 4}}, Reason.TERMS, "env.frame_skp"),
        ({"num_envs": 10**9}, Reason.TERMS, "num_envs"),
    ]
    for slot, (changes, reason, named) in enumerate(cases):
        header = peer.hello(slot, **changes)
        assert (header.kind, header.body[0]) == (Kind.ERROR, reason)
        assert named in header.body[1]
    wait_until(lambda: len(server.table) == 0)


@pytest.mark.parametrize(
    ("sessions", "settings"), [(1, {}), (1024, {"max_envs": 3}), (1024, {"max_workers": 1})], ids=str
)
def test_a_full_server_answers_busy(
    context: Context, ipc: str, monkeypatch: pytest.MonkeyPatch, sessions: int, settings: dict[str, int]
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", sessions)
    with running(ipc, **settings) as server:
        peer = Process(context, ipc)
        first, second, hosted = peer.hello(), peer.hello(slot=1), len(server.table)
        peer.port.close()
        assert first.kind is Kind.WELCOME
        assert (second.kind, second.body[0]) == (Kind.ERROR, Reason.BUSY)
        assert hosted == 1
        assert server.report()["refused_by_reason"].keys() == {"busy"}


def test_a_session_that_never_asks_for_anything_is_closed_and_may_come_back(
    server: EnvServer, peer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.hello()
    monkeypatch.setattr(session, "UNUSED_S", -1.0)
    wait_until(lambda: len(server.table) == 0)
    monkeypatch.setattr(session, "UNUSED_S", 60.0)
    assert peer.ask(Kind.RESET, seq=1)[0].body[0] == Reason.UNKNOWN_SESSION
    assert peer.hello().kind is Kind.WELCOME


def test_garbage_costs_counters_and_nothing_else(server: EnvServer, peer: Process, ipc: str) -> None:
    peer.hello()
    peer.ask(Kind.RESET, seq=1)
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(Endpoint.parse(ipc).socket(0))
    garbage = [[b""], [b"\xff" * 100], [b"\x93\x01\x06\x00"], [b"x"] * 50, [b"\x00" * 70_000], [b"\xc1", b"rest"]]
    for frames in garbage:
        push.send_multipart(frames)
    wait_until(lambda: server.report()["refused"] == len(garbage))
    while peer.receive():
        pass  # late answers to HELLO
    for kind, body, *payload in ((Kind.WELCOME, ({},)), (Kind.OBS, ([],), b"payload"), (Kind.ACK, (1, 1))):
        peer.send(kind, *payload, body=body)
        header, _ = wait_until(peer.receive)
        assert kind.name in header.body[1]
    assert counts(peer.ask(Kind.STEP, actions(0, 0), seq=2)[1]) == [1, 1]
    push.close(linger=0)
    context.term()
