"""Headers: every kind survives a round trip, and other bytes raise RemoteProtocolError at most."""

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerobeast.common.errors import LocalProtocolError, RemoteProtocolError, VersionMismatch
from zerobeast.common.wire import messages
from zerobeast.common.wire.messages import MAX_INTEGER, PROTOCOL_VERSION, Header, Kind, pack_header, unpack_header

unsigned = st.integers(0, MAX_INTEGER)
plain = st.recursive(
    st.none() | st.booleans() | unsigned | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: unsigned,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=50),
    list: st.lists(plain, max_size=4),
    dict: st.dictionaries(st.text(max_size=9), plain, max_size=4),
}
OF_TYPE |= {kind | None: st.none() | OF_TYPE[kind] for kind in (int, float, dict, list)}
OF_TYPE[int | list | None] = OF_TYPE[int | None] | OF_TYPE[list]
EXAMPLES: dict[Any, Any] = {int | None: 1, int | list | None: 1, dict | None: {"a": 1}, list | None: [True]}
EXAMPLES[float | None] = 0.5
headers = st.sampled_from(Kind).flatmap(
    lambda kind: st.builds(
        Header, st.just(kind), *[unsigned] * 4, body=st.tuples(*(OF_TYPE[entry] for entry in messages.BODIES[kind]))
    )
)


@given(headers)
def test_every_header_comes_back_as_it_was(header: Header) -> None:
    assert unpack_header(pack_header(header)) == header


@settings(max_examples=200)
@given(headers, st.data())
def test_a_damaged_header_is_a_header_or_a_remote_error(header: Header, data: st.DataObject) -> None:
    packed = bytearray(pack_header(header))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        found = unpack_header(bytes(packed))
        assert all(map(isinstance, found.body, messages.BODIES[found.kind]))


@given(st.lists(plain | st.integers(-(2**63), 2**64 - 1), max_size=12))
def test_any_list_is_a_header_or_a_remote_error(entries: list[Any]) -> None:
    try:
        sender = unpack_header(msgpack.packb(entries)).sender
    except VersionMismatch as error:
        sender = error.sender
    except RemoteProtocolError:
        return
    name = messages.topic(messages.Plane.STEPS, sender)
    assert messages.sender_of(name) == sender, "the topic of an answer names its client"


@pytest.mark.parametrize("kind", Kind)
def test_a_body_that_is_too_long_or_too_short_is_refused(kind: Kind) -> None:
    entries = messages.BODIES[kind]
    body = tuple(EXAMPLES[entry] if entry in EXAMPLES else entry() for entry in entries)
    lead = [PROTOCOL_VERSION, int(kind), 7, 0, 5, 3]

    def read(*body: Any) -> tuple[Any, ...]:
        return unpack_header(msgpack.packb([*lead, *body])).body

    assert read(*body) == body
    for wrong in [(*body, 0), *([body[:-1]] if body and entries[-1] not in EXAMPLES else [])]:
        with pytest.raises(RemoteProtocolError):
            read(*wrong)


def test_trailing_nil_entries_are_omitted_and_read_as_nil() -> None:
    resets: list[tuple[tuple[Any, ...], list[Any]]] = [((), []), ((None, None), []), ((5, None), [5]), (([5],), [[5]])]
    resets += [((None, {}), [None, {}]), ((None, None, [True]), [None, None, [True]])]
    for body, sent in resets:
        packed = pack_header(Header(Kind.RESET, 7, 0, 5, 3, body))
        assert msgpack.unpackb(packed) == [PROTOCOL_VERSION, 5, 7, 0, 5, 3, *sent]
        assert unpack_header(packed).body == (*sent, *[None] * (4 - len(sent)))
    assert len(pack_header(Header(Kind.OBS, 7, 0, 5, 3, ([], None)))) == 8, "steps are no longer for infos unasked for"
    assert len(pack_header(Header(Kind.STEP, 7, 0, 5, 3))) == 7
    assert len(pack_header(Header(Kind.ROLLOUT, 7, 0, 5, 3, (1, [], MAX_INTEGER)))) == 9 + 9, "nor are rollouts by much"
    for wrong in (True, 1.5, "1"):
        with pytest.raises(RemoteProtocolError):
            unpack_header(msgpack.packb([PROTOCOL_VERSION, 5, 7, 0, 5, 3, wrong]))


@pytest.mark.parametrize("value", [-1, MAX_INTEGER + 1, 1.0, True, None, "1", [1]])
def test_numbers_are_unsigned_integers_below_2_to_the_63_and_kinds_are_known(value: Any) -> None:
    good = [PROTOCOL_VERSION, int(Kind.ACK), 7, 0, 5, 3, 1, 1]
    assert unpack_header(msgpack.packb(good)) == Header(Kind.ACK, 7, 0, 5, 3, (1, 1, None))
    for place in range(1, 8) if value is not None else range(1, 7):
        with pytest.raises(RemoteProtocolError):
            unpack_header(msgpack.packb([*good[:place], value, *good[place + 1 :]]))


@pytest.mark.parametrize("rest", [[], [0, 0, 0], ["a later version", {}]], ids=str)
def test_another_version_is_recognised_and_names_its_sender_if_that_is_possible(rest: list[Any]) -> None:
    for version in (PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1):
        with pytest.raises(VersionMismatch, match=f"{version}.*{PROTOCOL_VERSION}") as caught:
            unpack_header(msgpack.packb([version, 3, 77, *rest]))
        assert caught.value.sender == 77
        for sender in (-5, MAX_INTEGER + 1, "7"):
            with pytest.raises(RemoteProtocolError) as other:
                unpack_header(msgpack.packb([version, 3, sender, *rest]))
            assert not isinstance(other.value, VersionMismatch), "it cannot be answered"


def test_an_oversized_header_is_refused_unread() -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_header(b"\x91" * (messages.MAX_HEADER_BYTES + 1))


@pytest.mark.parametrize(
    "header",
    [
        Header(Kind.BYE, -1),
        Header(Kind.BYE, MAX_INTEGER + 1),
        Header(Kind.BYE, 7, body=(1,)),
        Header(Kind.ACK, 7),
        Header(Kind.ACK, 7, body=(1, -1)),
        Header(Kind.ACK, 7, body=(1, 2.0)),
        Header(Kind.HELLO, 7, body=({"env": object()},)),
        Header(Kind.ERROR, 7, body=("terms", "x" * messages.MAX_HEADER_BYTES)),
    ],
    ids=lambda header: header.kind.name,
)
def test_packing_a_header_that_no_peer_would_accept_is_a_local_error(header: Header) -> None:
    with pytest.raises(LocalProtocolError):
        pack_header(header)


@given(st.sampled_from(messages.Plane), unsigned, st.binary(max_size=12))
def test_every_topic_has_the_same_width_and_names_its_client(plane: messages.Plane, sender: int, other: bytes) -> None:
    name = messages.topic(plane, sender)
    assert (len(name), name[:1], messages.sender_of(name)) == (messages.TOPIC_BYTES, plane.value, sender)
    assert (messages.sender_of(other) is None) or len(other) == messages.TOPIC_BYTES
