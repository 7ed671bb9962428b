"""docs/protocol.md put to the test: a program that imports nothing of this project serves environments to it."""

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from tests.helpers import free_port, killed_at_last, wait_until
from zerobeast.clients import env_session
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import ClientPort, Context, Incoming, random_id
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, Plane, Reason, pack_header
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "foreign_env_server.py"
ENV = {"id": "CartPole-v1"}
SPEC = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))


@pytest.fixture(scope="module", params=["ipc", "tcp"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of the example, run as its first lines say, in a process that cannot import this project."""
    endpoint = f"ipc://{tmp_path_factory.mktemp('f')}/s" if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-I", str(SCRIPT), endpoint]
    server = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with killed_at_last(server):
        yield endpoint
        assert server.poll() is None, server.communicate()[0]


@pytest.fixture
def envs(context: Context, endpoint: str) -> Iterator[EnvClient]:
    with EnvClient(context, endpoint, ENV, num_envs=5, seed=3) as client:
        yield client


def test_the_example_is_short_and_imports_nothing_of_this_project() -> None:
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 110
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"msgpack", "zmq"}


def test_reset_opens_every_episode(envs: EnvClient) -> None:
    assert envs.spec == SPEC
    rows = envs.reset()
    assert rows["first"].all()
    assert (np.abs(rows["obs"]) <= 0.05).all()
    assert not rows["reward"].any()
    assert len({tuple(obs) for obs in rows["obs"].tolist()}) == 5, "each environment has its own seed"


def test_the_physics_are_those_of_gymnasium(envs: EnvClient) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    twins = [gymnasium.make("CartPole-v1").unwrapped for _ in range(envs.num_envs)]
    rows = envs.reset()
    for twin, obs in zip(twins, rows["obs"], strict=True):
        twin.reset()
        twin.state = obs.astype(np.float64)
    generator = np.random.default_rng(0)
    for _ in range(8):
        actions = generator.integers(0, 2, envs.num_envs)
        rows, *_ = envs.step(actions)
        found = np.stack([twin.step(int(action))[0] for twin, action in zip(twins, actions, strict=True)])
        np.testing.assert_allclose(rows["obs"], found, rtol=0, atol=1e-5)


def test_episodes_restart_by_the_rule_and_are_reported_whole(envs: EnvClient) -> None:
    rows = envs.reset()
    over = np.zeros(5, bool)
    steps = np.zeros(5, int)
    reported = []
    for turn in range(300):
        rows, episodes, _ = envs.step(np.full(5, turn // 7 % 2))
        np.testing.assert_array_equal(rows["first"], over)
        np.testing.assert_array_equal(rows["reward"], np.where(over, 0, 1))
        steps = np.where(over, 0, steps + 1)
        outside = (np.abs(rows["obs"][:, 0]) > 2.4) | (np.abs(rows["obs"][:, 2]) > math.radians(12))
        np.testing.assert_array_equal(rows["terminated"], outside)
        assert not (rows["terminated"] & over).any()
        over = rows["terminated"] | rows["truncated"]
        assert sorted(episodes) == sorted((float(n), int(n)) for n in steps[over])
        reported += episodes
    assert len(reported) > 10


def test_a_balanced_pole_is_truncated_after_500_steps(envs: EnvClient) -> None:
    rows = envs.reset()
    ends = []
    for _ in range(502):
        lean = rows["obs"] @ np.array([0.05, 0.2, 1.0, 0.4], np.float32)
        rows, episodes, _ = envs.step((lean > 0).astype(int))
        ends += episodes
        if rows["truncated"].any():
            assert not rows["terminated"].any()
            assert rows["reward"].all()
    assert ends == [(500.0, 500)] * 5
    assert not rows["first"].any()


def test_its_refusals_are_sentences(context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"expected CartPole-v1"):
        EnvClient(context, endpoint, {"id": "PongNoFrameskip-v4"}, num_envs=1, seed=0)
    with EnvClient(context, endpoint, ENV, num_envs=2, seed=0) as client:
        client.reset()
        monkeypatch.setattr(env_session, "fill_actions", lambda into, _, actions: np.copyto(into, actions))  # unchecked
        with pytest.raises(ConfigError, match="0 or 1"):
            client.step([0, 7])


def hello(port: ClientPort) -> Header:
    """The answer to the HELLO of a session of two environments."""

    def answered() -> Incoming | None:
        port.send(Header(Kind.HELLO, port.sender, body=({"env": ENV, "num_envs": 2, "seed": 0},)))
        return port.receive()

    return wait_until(answered).header


def ask(port: ClientPort, header: Header, *frames: Any) -> tuple[Header, list[bytes]]:
    """The answer to a request; WELCOMEs that still arrive are skipped."""
    assert port.send(header, *frames)
    while True:
        message = wait_until(port.receive)
        if message.header.kind is not Kind.WELCOME:
            return message.header, message.frames()


def test_a_repeated_request_gets_the_same_answer_and_steps_nothing(context: Context, endpoint: str) -> None:
    with closing(ClientPort(context, Plane.STEPS, endpoint, random_id())) as port:
        epoch = hello(port).epoch
        ask(port, Header(Kind.RESET, port.sender, 0, epoch, 1))
        actions = np.zeros(2, action_record(SPEC.action).dtype)
        answers = [ask(port, Header(Kind.STEP, port.sender, 0, epoch, 2), actions) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        header, frames = ask(port, Header(Kind.STEP, port.sender, 0, epoch, 3), actions)
        assert header.seq == 3
        rows = np.frombuffer(frames[0], step_record(SPEC).dtype)
        before = np.frombuffer(answers[0][1][0], step_record(SPEC).dtype)
        np.testing.assert_allclose(rows["obs"][:, 0], before["obs"][:, 0] + 0.02 * before["obs"][:, 1], atol=1e-6)
        repeated = hello(port)
        assert (repeated.kind, repeated.epoch, repeated.seq) == (Kind.WELCOME, epoch, 3)


def test_a_session_of_another_start_is_unknown(context: Context, endpoint: str) -> None:
    with closing(ClientPort(context, Plane.STEPS, endpoint, random_id())) as port:
        epoch = hello(port).epoch
        header, _ = ask(port, Header(Kind.RESET, port.sender, 0, epoch ^ 1, 8))
        assert (header.kind, header.seq, header.body[0]) == (Kind.ERROR, 8, Reason.UNKNOWN_SESSION)
        port.send(Header(Kind.BYE, port.sender, 0, epoch))
        header, _ = ask(port, Header(Kind.RESET, port.sender, 0, epoch, 1))
        assert header.body[0] == Reason.UNKNOWN_SESSION


def test_clients_that_have_gone_make_room(context: Context, endpoint: str) -> None:
    with ExitStack() as stack:
        for _ in range(64):  # those of earlier tests are noticed to be gone a moment later
            client = stack.enter_context(closing(ClientPort(context, Plane.STEPS, endpoint, random_id())))
            wait_until(lambda client=client: hello(client).kind is Kind.WELCOME)
        late = ClientPort(context, Plane.STEPS, endpoint, random_id())
        assert hello(late).kind is Kind.ERROR, "the example has room for 64 sessions"
    with closing(late):
        wait_until(lambda: hello(late).kind is Kind.WELCOME)


def test_garbage_does_not_end_it(context: Context, endpoint: str, envs: EnvClient) -> None:
    rows = envs.reset()
    place = Endpoint.parse(endpoint)
    garbage: list[list[bytes]] = [
        [b""],
        [b"\xc1"],
        [b"\x91" * 60_000],
        [os.urandom(1000)],
        [msgpack.packb([PROTOCOL_VERSION, 99, 7, 0, 0, 0])],
        [msgpack.packb([PROTOCOL_VERSION, int(Kind.HELLO), 7, 0, 0, 0])],
        [msgpack.packb([PROTOCOL_VERSION, int(Kind.HELLO), 7, 0, 0, 0, {"env": 5}])],
        [msgpack.packb([PROTOCOL_VERSION, int(Kind.HELLO), -7, 0, 0, 0, {}])],
        [msgpack.packb([PROTOCOL_VERSION, int(Kind.HELLO), 7, 0, 0, 0, {"env": ENV, "num_envs": 2.0, "seed": "x"}])],
        [msgpack.packb([PROTOCOL_VERSION + 1, int(Kind.HELLO), -7])],
        [pack_header(Header(Kind.STEP, 7, 0, 5, 1)), b"short"],
        [pack_header(Header(Kind.WELCOME, 7, body=({},)))],
    ]
    with ExitStack() as stack:
        push = stack.enter_context(context.socket(zmq.PUSH))
        push.set(zmq.LINGER, 2000)
        push.connect(place.socket(0))
        for frames in garbage:
            push.send_multipart(frames)
        raw = stack.enter_context(socket.socket(socket.AF_UNIX) if place.path else socket.socket(socket.AF_INET))
        raw.connect(f"{place.path}.0" if place.path else (place.host, place.port))
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        subscriber = stack.enter_context(context.socket(zmq.SUB))
        subscriber.subscribe(b"s")
        subscriber.connect(place.socket(1))
        for _ in range(20):
            rows, *_ = envs.step(rows["obs"][:, 2] > 0)
    assert envs.step(np.zeros(5))[0]["reward"].all()


def test_a_client_of_another_version_is_refused(context: Context, endpoint: str) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(closing(ClientPort(context, Plane.STEPS, endpoint, random_id())))
        push = stack.enter_context(context.socket(zmq.PUSH))
        push.set(zmq.LINGER, 0)
        push.connect(Endpoint.parse(endpoint).socket(0))
        hello(port)
        push.send(msgpack.packb([PROTOCOL_VERSION + 1, int(Kind.HELLO), port.sender, "laid out otherwise"]))

        def told() -> Header | None:
            while message := port.receive():
                if message.header.kind is Kind.ERROR:
                    return message.header
            return None

        header = wait_until(told)
        assert header.body[0] == Reason.VERSION


def test_a_reset_may_have_seeds_but_neither_options_nor_a_mask(envs: EnvClient) -> None:
    first = envs.reset(seed=7)["obs"]
    assert not np.array_equal(envs.reset()["obs"], first)
    np.testing.assert_array_equal(envs.reset(seed=[7, 8, 9, 10, 11])["obs"], first)
    for asked in ({"options": {}}, {"mask": np.ones(5, bool)}, {"seed": [1]}):
        with pytest.raises(ConfigError, match="a seed for each environment, and neither options nor a mask"):
            envs.reset(**asked)
    assert envs.step(np.zeros(5))[0]["reward"].all()
