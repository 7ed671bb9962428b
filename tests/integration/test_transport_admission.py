"""Encrypted tcp: only peers with a key of the plane are heard, and an id belongs to one key alone."""

import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from tests.helpers import free_port, wait_until
from tests.integration.ports import bound_again
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.roles import ROLES
from zerobeast.common.service.base import Service
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import (
    ClientPort,
    Context,
    Keys,
    Poller,
    ServerPort,
    WeightsPublisher,
    WeightsSubscriber,
    add_key,
    make_keys,
)
from zerobeast.common.transport import context as admission_module
from zerobeast.common.transport.context import Admission
from zerobeast.common.transport.keys import CLIENTS, SERVERS
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.services.broker.service import Broker
from zerobeast.services.envserver.service import EnvServer
from zerobeast.services.learner.service import Learner

SENDER = 77
SLOTS = count()
LONG_S, SHORT_S = 60.0, 1.5  #: limits for a client that must be heard, and for one that must not
Make = Callable[..., Context]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def contexts() -> Iterator[Make]:
    made: list[Context] = []

    def make(folder: Path | None, role: str, certificate: str = "") -> Context:
        secret = f"{folder}/secret/{certificate}.key_secret" if certificate else ""
        made.append(Context(Keys(str(folder), role, secret) if folder else None))
        return made[-1]

    yield make
    for context in made:
        context.term()


@pytest.fixture
def place() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def server(contexts: Make, keys: Path, place: str) -> Iterator[ServerPort]:
    with closing(ServerPort(contexts(keys, "envserver"), Plane.STEPS, place)) as port:
        yield port


def answered(here: ServerPort, there: ClientPort, slot: int) -> bool:
    """Send HELLO once more and return whether an answer for this slot has arrived."""
    there.send(Header(Kind.HELLO, there.sender, slot, body=({},)))
    while message := here.receive():
        here.send(Header(Kind.WELCOME, message.header.sender, message.header.slot, body=({},)))
    here.changes()
    Poller([here, there]).wait(0.05)
    reply = there.receive()
    return reply is not None and reply.header.slot == slot


def greeted(here: ServerPort, there: ClientPort, seconds: float) -> bool:
    """Whether a new HELLO arrives and its answer comes back; leftovers of earlier ones do not count."""
    slot, until = next(SLOTS), time.monotonic() + seconds
    while time.monotonic() < until:
        if answered(here, there, slot):
            return True
    return False


def heard(here: ServerPort, client: Context, place: str, seconds: float, sender: int = SENDER) -> bool:
    """Whether a new client's HELLO arrives and its answer comes back."""
    with closing(ClientPort(client, here.plane, place, sender)) as there:
        return greeted(here, there, seconds)


def refused(here: ServerPort, client: Context, place: str) -> None:
    """Connect for requests and for replies, and wait until both have been counted as refused for their key."""
    wanted = here.refused["key"] + 2
    with closing(ClientPort(client, here.plane, place, SENDER)) as there:
        wait_until(lambda: here.changes() == {} and here.refused["key"] >= wanted)
        assert not answered(here, there, next(SLOTS))


def test_holders_of_keys_talk_in_frames_of_any_size_and_an_ipc_path_needs_no_keys(
    server: ServerPort, keys: Path, contexts: Make, place: str, tmp_path: Path
) -> None:
    buffer = bytearray(1 << 16)
    with closing(ClientPort(contexts(keys, "actor"), Plane.STEPS, place, SENDER)) as there:
        assert greeted(server, there, LONG_S)
        wait_until(lambda: there.send(Header(Kind.STEP, SENDER, 0, 1, 1), b"x" * (1 << 16)))
        wait_until(lambda: (message := server.receive()) and message.header.kind is Kind.STEP and message.into(buffer))
    assert set(buffer) == {ord("x")}
    assert server.refused.total() == 0
    with closing(ServerPort(contexts(keys, "envserver"), Plane.STEPS, f"ipc://{tmp_path}/s")) as here:
        assert heard(here, contexts(None, "actor"), f"ipc://{tmp_path}/s", LONG_S)


def test_peers_without_an_admitted_key_reach_nothing(
    server: ServerPort, contexts: Make, keys: Path, place: str, tmp_path: Path
) -> None:
    make_keys(tmp_path / "others")
    for file in ("envserver.key", "broker.key", "learner.key"):  # a stranger knows everything that is public
        (tmp_path / "others/public" / file).write_bytes((keys / "public" / file).read_bytes())
    assert not heard(server, contexts(None, "actor"), place, SHORT_S)
    assert not heard(server, contexts(tmp_path / "others", "actor"), place, SHORT_S)
    assert heard(server, contexts(keys, "actor"), place, LONG_S)


def test_a_client_does_not_talk_to_a_server_with_another_key(
    keys: Path, contexts: Make, tmp_path: Path, place: str
) -> None:
    make_keys(tmp_path / "others")
    admitted = tmp_path / "others/public/actor.key"
    admitted.write_bytes((keys / "public/actor.key").read_bytes())
    with closing(ServerPort(contexts(tmp_path / "others", "envserver"), Plane.STEPS, place)) as here:
        assert not heard(here, contexts(keys, "actor"), place, SHORT_S)
        assert here.refused.total() == 0, "it is the client that breaks off"


@pytest.mark.parametrize("plane", [Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS])
def test_a_plane_admits_the_keys_of_the_role_that_talks_there_and_no_others(
    plane: Plane, keys: Path, contexts: Make, place: str
) -> None:
    with closing(ServerPort(contexts(keys, SERVERS[plane]), plane, place)) as here:
        for role in ROLES:
            if role == CLIENTS[plane]:
                assert heard(here, contexts(keys, role), place, LONG_S)
            else:
                refused(here, contexts(keys, role), place)


def test_the_weights_go_to_brokers_alone(keys: Path, contexts: Make, place: str) -> None:
    learner = contexts(keys, "learner")
    with closing(WeightsPublisher(learner, place)) as publisher:
        publisher.publish(Header(Kind.WEIGHTS, 0, 1, 1, 1, (1, 1, 4, 1, 1)), b"abcd")

        with closing(WeightsSubscriber(contexts(keys, "actor"), place)) as stranger:
            wait_until(lambda: publisher.welcome() or learner.turned_away)
            with closing(WeightsSubscriber(contexts(keys, "broker"), place)) as subscriber:
                assert wait_until(lambda: publisher.welcome() or subscriber.receive())
            assert not stranger.receive()


def test_a_refused_key_is_counted_and_logged_once_and_a_flood_of_them_once_per_period(
    server: ServerPort,
    contexts: Make,
    keys: Path,
    place: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_module, "LOG_PERIOD_S", 0.0)
    stranger = contexts(keys, "broker")
    for _ in range(2):
        refused(server, stranger, place)
    monkeypatch.setattr(admission_module, "LOG_PERIOD_S", 3600.0)
    for role in ("learner", "envserver"):
        refused(server, contexts(keys, role), place)
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for named in ("127.0.0.1", Keys(str(keys), "broker").public.decode(), str(keys / "public")):
        assert named in line


def test_keys_come_and_go_while_a_server_runs(server: ServerPort, contexts: Make, keys: Path, place: str) -> None:
    with closing(ClientPort(contexts(keys, "actor"), Plane.STEPS, place, SENDER)) as old:
        assert greeted(server, old, LONG_S)
        add_key(keys, "actor")
        wait_until(lambda: heard(server, contexts(keys, "actor", "actor-2"), place, SHORT_S, 2))
        (keys / "public/actor.key").unlink()
        wait_until(lambda: not heard(server, contexts(keys, "actor"), place, SHORT_S, 3))
        assert server.refused["key"]
        assert greeted(server, old, LONG_S), "a connection that is open stays"
        assert heard(server, contexts(keys, "actor", "actor-2"), place, LONG_S, 4)


def test_keys_that_were_read_before_are_admitted_while_no_file_can_be_opened(
    server: ServerPort, contexts: Make, keys: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(admission_module, "REREAD_S", 0.0)
    actor, late = contexts(keys, "actor"), contexts(keys, "actor")
    with monkeypatch.context() as patched:
        patched.setattr("zmq.auth.load_certificate", fails)
        assert not heard(server, late, place, SHORT_S), "no keys are known yet"
    assert heard(server, late, place, LONG_S, 2)
    for broken in ("os.listdir", "zmq.auth.load_certificate"):
        with monkeypatch.context() as patched:
            patched.setattr(broken, fails)
            assert heard(server, actor, place, LONG_S, next(SLOTS) + 100)


def test_a_request_for_admission_that_nobody_can_read_is_answered_and_the_next_too(keys: Path) -> None:
    context = zmq.Context()
    admission = Admission(context, Keys(str(keys), "learner"))
    with context.socket(zmq.DEALER) as asks:
        asks.rcvtimeo = 20_000
        asks.connect("inproc://zeromq.zap.01")
        raw = z85.decode(Keys(str(keys), "actor").public)
        for domain, address, key, status in (
            (b"nowhere", b"", raw, b"300"),
            (b"r", b"", b"short", b"300"),
            (b"r", b"\xff", b"x" * 32, b"400"),
            (b"r", b"", raw, b"200"),
        ):
            asks.send_multipart([b"", b"1.0", b"7", domain, address, b"", b"CURVE", key])
            assert asks.recv_multipart()[1:4] == [b"1.0", b"7", status]
        asks.send_multipart([b"", b"1.0"])
        assert asks.recv_multipart()[2] == b"300"
    assert admission.is_alive()
    context.term()
    admission.join()
    assert not admission.is_alive()


def test_a_server_with_a_new_key_is_found_by_clients_that_connect_anew_and_not_before_its_file_is_whole(
    contexts: Make, keys: Path, place: str
) -> None:
    file = keys / "public/envserver.key"
    with closing(ServerPort(contexts(keys, "envserver"), Plane.STEPS, place)) as here:
        there = ClientPort(contexts(keys, "actor"), Plane.STEPS, place, SENDER)
        file.write_text("half of a fi")
        there.reopen()
        assert greeted(here, there, LONG_S), "with the key that it has"
    add_key(keys, "envserver")
    (keys / "public/envserver-2.key").replace(file)
    (keys / "secret/envserver-2.key_secret").replace(keys / "secret/envserver.key_secret")
    with (
        closing(there),
        closing(bound_again(partial(ServerPort, contexts(keys, "envserver"), Plane.STEPS, place))) as here,
    ):
        assert not greeted(here, there, SHORT_S), "it still asks for the old key"
        there.reopen()
        assert greeted(here, there, LONG_S)


def test_an_id_belongs_to_the_first_key_that_uses_it(
    server: ServerPort, contexts: Make, keys: Path, place: str
) -> None:
    add_key(keys, "actor")
    first, second = (contexts(keys, "actor", name) for name in ("actor", "actor-2"))
    with closing(ClientPort(first, Plane.STEPS, place, SENDER)) as owner:
        assert greeted(server, owner, LONG_S)
        with closing(ClientPort(second, Plane.STEPS, place, SENDER)) as thief:
            subscribed = server.refused["sender"]
            assert not greeted(server, thief, SHORT_S)
            assert server.refused["sender"] > subscribed + 1, "its subscription and its messages"
            server.send(Header(Kind.BYE, SENDER, seq=9))
            assert wait_until(lambda: (m := owner.receive()) and m.header.seq == 9)
            assert thief.receive() is None
        assert server.departures() == [], "that a thief leaves is no departure of the owner"
        assert heard(server, second, place, LONG_S, SENDER + 1)


@pytest.mark.parametrize("kind", [EnvServer, Broker, Learner])
def test_a_server_beyond_loopback_needs_keys_or_the_flag_insecure(kind: type[Service], tmp_path: Path) -> None:
    def service(host: str, **security: object) -> Service:
        place = {"endpoint": f"tcp://{host}:{free_port()}"}
        run = {"name": "x", "root": str(tmp_path), "security": security, kind.role: place}
        return kind(RunConfig.model_validate(run), Instance())

    for host in ("*", "0.0.0.0", "[::]", "eth0"):
        with pytest.raises(ConfigError, match="--security"):
            Loop([service(host)]).run()
    told = service("*", insecure=True)
    told.tick = lambda _now: told.stop()
    assert Loop([told]).run() == 0
