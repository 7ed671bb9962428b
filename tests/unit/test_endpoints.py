"""Addresses as users write them and as sockets have them, and which key an id belongs to."""

import socket
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build.errors import refuses
from zerobeast.common.endpoints import MAX_IPC_PATH, Endpoint
from zerobeast.common.errors import ConfigError, PeerLost, RemoteProtocolError, VersionMismatch
from zerobeast.common.transport.subscriptions import MAX_IDS, Owners
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, pack_header, unpack_header


@pytest.mark.parametrize(
    ("text", "sockets"),
    [
        ("tcp://learner-0.learner:5560", ["tcp://learner-0.learner:5560", "tcp://learner-0.learner:5561"]),
        ("ipc:///run/x/learner", ["ipc:///run/x/learner.0", "ipc:///run/x/learner.1"]),
        ("tcp://[::1]:5555", ["tcp://[::1]:5555", "tcp://[::1]:5556"]),
    ],
)
def test_the_sockets_of_an_endpoint_are_neighbouring_ports_or_numbered_files(text: str, sockets: list[str]) -> None:
    assert [Endpoint.parse(text).socket(index) for index in range(2)] == sockets


GOOD = ["tcp://*:5555", "tcp://[::1]:5555", "tcp://10.0.0.1:1", "tcp://a_b:65530", "ipc://x", "inproc://learner"]
BAD = ["", "learner:5560", "tcp://learner", "tcp://learner:0", "tcp://learner:65531", "tcp://learner:5560/"]
BAD += ["tcp://:5560", "tcp://a b:5560", "udp://a:5560", "ipc://", "ipc://a\0b"]
BAD += ["ipc://" + "x" * (MAX_IPC_PATH + 1), "ipc://" + "ä" * (MAX_IPC_PATH // 2 + 1)]


@pytest.mark.parametrize("text", GOOD)
def test_an_endpoint_is_tcp_ipc_or_inproc_and_reads_as_it_was_written(text: str) -> None:
    assert str(Endpoint.parse(text)) == text


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused_as_it_was_written(text: str) -> None:
    with refuses("endpoint", value=text):
        Endpoint.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_an_endpoint_or_a_config_error(text: str) -> None:
    for candidate in (text, f"tcp://{text}:5555", f"ipc://{text}", f"tcp://x:{text}"):
        with suppress(ConfigError):
            Endpoint.parse(candidate)


def test_a_name_has_each_ipv4_address_once_and_is_resolved_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        hosts = ["10.0.0.2", "10.0.0.1", "10.0.0.2"]
        v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 5555, 0, 0))
        return [v6, *((socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 5555)) for host in hosts)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    place = Endpoint.parse("tcp://broker:5555")
    assert list(map(str, place.addresses())) == ["tcp://10.0.0.2:5555", "tcp://10.0.0.1:5555"]
    assert place.resolve() == Endpoint("10.0.0.2", 5555)


def test_a_number_and_a_path_resolve_to_themselves_and_a_wildcard_to_nothing() -> None:
    for text in ("tcp://[::1]:5555", "ipc:///run/x/learner"):
        assert str(Endpoint.parse(text).resolve()) == text
    with refuses("endpoint", value="tcp://*:5555"):
        Endpoint.parse("tcp://*:5555").resolve()


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid", "x" * 70])
def test_a_name_that_does_not_resolve_is_a_lost_peer_to_be_tried_again(host: str) -> None:
    with pytest.raises(PeerLost):
        Endpoint.parse(f"tcp://{host}:5555").resolve()


def test_a_socket_with_a_listener_is_taken_and_one_without_is_free(tmp_path: Path) -> None:
    place = Endpoint.parse(f"ipc://{tmp_path}/s")
    place.refuse_if_taken(0)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{tmp_path}/s.0")
    place.refuse_if_taken(0)
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"{tmp_path}/s.1")
        taken.listen(0)
        place.refuse_if_taken(0)
        for _ in range(3):  # the later ones find its backlog full
            with refuses("endpoint", value=str(place)):
                place.refuse_if_taken(1)
    (tmp_path / "s.2").write_text("notes")
    with refuses("endpoint"):
        place.refuse_if_taken(2)
    assert (tmp_path / "s.2").read_text() == "notes", "a file is not taken for a socket"


@pytest.mark.parametrize(
    ("text", "is_loopback", "is_name"),
    [
        ("ipc:///run/x/l", True, False),
        ("tcp://127.0.0.1:5", True, False),
        ("tcp://[::1]:5", True, False),
        ("tcp://localhost:5", True, True),
        ("tcp://[127.0.0.1%bad.de]:5", False, True),
        ("tcp://[::1%1]:5", True, False),
        ("tcp://*:5", False, False),
        ("tcp://0.0.0.0:5", False, False),
        ("tcp://[::]:5", False, False),
        ("tcp://10.0.0.1:5", False, False),
        ("tcp://localhost.example.org:5", False, True),
    ],
)
def test_loopback_and_paths_stay_on_this_machine_and_names_have_to_be_looked_up(
    text: str, *, is_loopback: bool, is_name: bool
) -> None:
    place = Endpoint.parse(text)
    assert (place.is_loopback, place.is_name) == (is_loopback, is_name)


def test_a_client_id_belongs_to_the_first_key_that_uses_it_and_ever_new_ones_cost_a_key_its_own() -> None:
    owners = Owners()
    for sender in range(1, MAX_IDS + 3):
        owners.check(sender, "mine" if sender == 1 else "yours")
    owners.check(1, "mine")
    for sender, key in ((1, "yours"), (3, "mine")):
        with refuses(kind=RemoteProtocolError, reason="sender"):
            owners.check(sender, key)
    owners.check(2, "mine")


def test_a_message_of_any_version_is_held_to_the_key_of_its_sender() -> None:
    owners, header = Owners(), Header(Kind.BYE, 1)
    mine, yours = (partial(owners.check, key=key) for key in ("mine", "yours"))
    assert unpack_header(pack_header(header), mine) == header
    newer = msgpack.packb([PROTOCOL_VERSION + 1, 1, 1])
    with pytest.raises(VersionMismatch):
        unpack_header(newer, mine)
    for data in (pack_header(header), newer):  # or the owner would be told that its version is wrong
        with refuses(kind=RemoteProtocolError, reason="sender"):
            unpack_header(data, yours)
