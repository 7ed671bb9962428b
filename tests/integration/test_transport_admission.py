"""Encrypted tcp: only peers with a key of the plane are heard, and an id belongs to one key alone."""

import errno
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
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


class Net:
    """A place of a server, a folder of keys, and the contexts that use them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.keys, self.stack = folder, folder / "keys", stack
        self.place = f"tcp://127.0.0.1:{free_port()}"
        make_keys(self.keys)

    def context(self, role: str, certificate: str = "", keys: Path | None = None) -> Context:
        """One with the keys of a role, from `keys` if given."""
        folder = keys or self.keys
        secret = f"{folder}/secret/{certificate}.key_secret" if certificate else ""
        return self.closed(Context(Keys(str(folder), role, secret)))

    def closed(self, context: Context) -> Context:
        self.stack.callback(context.term)
        return context

    def server(self, plane: Plane = Plane.STEPS, keys: Path | None = None) -> "closing[ServerPort]":
        return closing(ServerPort(self.context(SERVERS[plane], keys=keys), plane, self.place))

    def client(self, context: Context, sender: int = SENDER, plane: Plane = Plane.STEPS) -> "closing[ClientPort]":
        return closing(ClientPort(context, plane, self.place, sender))

    def heard(self, here: ServerPort, client: Context, seconds: float, sender: int = SENDER) -> bool:
        """Whether a new client's HELLO arrives and its answer comes back."""
        with self.client(client, sender, here.plane) as there:
            return greeted(here, there, seconds)

    def refused(self, here: ServerPort, client: Context) -> None:
        """Connect for requests and for replies, and wait until both have been counted as refused for their key."""
        wanted = here.refused["key"] + 2
        with self.client(client, plane=here.plane) as there:
            wait_until(lambda: here.changes() == {} and here.refused["key"] >= wanted)
            assert not answered(here, there, next(SLOTS))

    def others(self) -> Path:
        """The keys of strangers."""
        make_keys(self.folder / "others")
        return self.folder / "others"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(tmp_path, stack)


@pytest.fixture
def server(net: Net) -> Iterator[ServerPort]:
    with net.server() as port:
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


def test_holders_of_keys_talk_in_frames_of_any_size_and_an_ipc_path_needs_no_keys(server: ServerPort, net: Net) -> None:
    buffer = bytearray(1 << 16)
    with net.client(net.context("actor")) as there:
        assert greeted(server, there, LONG_S)
        wait_until(lambda: there.send(Header(Kind.STEP, SENDER, 0, 1, 1), b"x" * (1 << 16)))
        wait_until(lambda: (message := server.receive()) and message.header.kind is Kind.STEP and message.into(buffer))
    assert set(buffer) == {ord("x")}
    assert server.refused.total() == 0
    net.place = f"ipc://{net.folder}/s"
    with net.server() as here:
        assert net.heard(here, net.closed(Context()), LONG_S)


def test_peers_without_an_admitted_key_reach_nothing(server: ServerPort, net: Net) -> None:
    others = net.others()
    for file in ("envserver.key", "broker.key", "learner.key"):  # a stranger knows everything that is public
        (others / "public" / file).write_bytes((net.keys / "public" / file).read_bytes())
    assert not net.heard(server, net.closed(Context()), SHORT_S)
    assert not net.heard(server, net.context("actor", keys=others), SHORT_S)
    assert net.heard(server, net.context("actor"), LONG_S)


def test_a_client_does_not_talk_to_a_server_with_another_key(net: Net) -> None:
    others = net.others()
    (others / "public/actor.key").write_bytes((net.keys / "public/actor.key").read_bytes())
    with net.server(keys=others) as here:
        assert not net.heard(here, net.context("actor"), SHORT_S)
        assert here.refused.total() == 0, "it is the client that breaks off"


@pytest.mark.parametrize("plane", [Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS])
def test_a_plane_admits_the_keys_of_the_role_that_talks_there_and_no_others(plane: Plane, net: Net) -> None:
    with net.server(plane) as here:
        for role in ROLES:
            if role in CLIENTS[plane]:
                assert net.heard(here, net.context(role), LONG_S)
            else:
                net.refused(here, net.context(role))


def test_the_weights_go_to_brokers_alone(net: Net) -> None:
    learner = net.context("learner")
    with closing(WeightsPublisher(learner, net.place)) as publisher:
        publisher.publish(Header(Kind.WEIGHTS, 0, 1, 1, 1, (1, 1, 4, 1, 1)), b"abcd")

        with closing(WeightsSubscriber(net.context("actor"), net.place)) as stranger:
            wait_until(lambda: publisher.welcome() or learner.turned_away)
            with closing(WeightsSubscriber(net.context("broker"), net.place)) as subscriber:
                assert wait_until(lambda: publisher.welcome() or subscriber.receive())
            assert not stranger.receive()


def test_a_refused_key_is_counted_and_logged_once_and_a_flood_of_them_once_per_period(
    server: ServerPort, net: Net, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "LOG_PERIOD_S", 0.0)
    stranger = net.context("broker")
    for _ in range(2):
        net.refused(server, stranger)
    monkeypatch.setattr(admission_module, "LOG_PERIOD_S", 3600.0)
    for role in ("learner", "envserver"):
        net.refused(server, net.context(role))
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for named in ("127.0.0.1", Keys(str(net.keys), "broker").public.decode(), str(net.keys / "public")):
        assert named in line


def test_keys_come_and_go_while_a_server_runs(server: ServerPort, net: Net) -> None:
    with net.client(net.context("actor")) as old:
        assert greeted(server, old, LONG_S)
        add_key(net.keys, "actor")
        wait_until(lambda: net.heard(server, net.context("actor", "actor-2"), SHORT_S, 2))
        (net.keys / "public/actor.key").unlink()
        wait_until(lambda: not net.heard(server, net.context("actor"), SHORT_S, 3))
        assert server.refused["key"]
        assert greeted(server, old, LONG_S), "a connection that is open stays"
        assert net.heard(server, net.context("actor", "actor-2"), LONG_S, 4)


def test_keys_that_were_read_before_are_admitted_while_no_file_can_be_opened(
    server: ServerPort, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(admission_module, "REREAD_S", 0.0)
    actor, late = net.context("actor"), net.context("actor")
    with monkeypatch.context() as patched:
        patched.setattr("zmq.auth.load_certificate", fails)
        assert not net.heard(server, late, SHORT_S), "no keys are known yet"
    assert net.heard(server, late, LONG_S, 2)
    for broken in ("os.listdir", "zmq.auth.load_certificate"):
        with monkeypatch.context() as patched:
            patched.setattr(broken, fails)
            assert net.heard(server, actor, LONG_S, next(SLOTS) + 100)


def test_a_request_for_admission_that_nobody_can_read_is_answered_and_the_next_too(net: Net) -> None:
    context = zmq.Context()
    admission = Admission(context, Keys(str(net.keys), "learner"))
    with context.socket(zmq.DEALER) as asks:
        asks.rcvtimeo = 20_000
        asks.connect("inproc://zeromq.zap.01")
        raw = z85.decode(Keys(str(net.keys), "actor").public)
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


def test_a_server_with_a_new_key_is_found_by_clients_that_connect_anew_and_not_before_its_file_is_there(
    net: Net,
) -> None:
    file = net.keys / "public/envserver.key"
    with net.server() as here:
        there = ClientPort(net.context("actor"), Plane.STEPS, net.place, SENDER)
        file.write_text("half of a fi")
        there.reopen()
        assert greeted(here, there, LONG_S), "with the key that it has"
    add_key(net.keys, "envserver")
    (net.keys / "public/envserver-2.key").replace(file)
    (net.keys / "secret/envserver-2.key_secret").replace(net.keys / "secret/envserver.key_secret")
    with closing(there), bound_again(net.server) as here:
        assert not greeted(here, there, SHORT_S), "it still asks for the old key"
        there.reopen()
        assert greeted(here, there, LONG_S)


def test_an_id_belongs_to_the_first_key_that_uses_it(server: ServerPort, net: Net) -> None:
    add_key(net.keys, "actor")
    first, second = (net.context("actor", name) for name in ("actor", "actor-2"))
    with net.client(first) as owner:
        assert greeted(server, owner, LONG_S)
        with net.client(second) as thief:
            subscribed = server.refused["sender"]
            assert not greeted(server, thief, SHORT_S)
            assert server.refused["sender"] > subscribed + 1, "its subscription and its messages"
            server.send(Header(Kind.BYE, SENDER, seq=9))
            assert wait_until(lambda: (m := owner.receive()) and m.header.seq == 9)
            assert thief.receive() is None
        assert server.departures() == [], "that a thief leaves is no departure of the owner"
        assert net.heard(server, second, LONG_S, SENDER + 1)


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
    Loop([told]).run()
