"""Values survive the wire unchanged; what must not travel is refused on both sides, and pickle is never used."""

import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zerobeast.common.errors import LocalProtocolError, RemoteProtocolError
from zerobeast.common.wire.codec import DTYPES, MAX_ARRAY_BYTES, MAX_DEPTH, MAX_NDIM, pack, unpack

PLAIN = (type(None), bool, int, float, str, bytes, list, dict, np.ndarray)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8).filter(lambda key: key != "nd") | st.integers(0, 99), inner, max_size=5)
    ),
    max_leaves=20,
)
plain_arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


@pytest.fixture(autouse=True, scope="module")
def _pickle_is_a_trap() -> Iterator[None]:
    def trap(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("bytes from the wire reached pickle")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle, "loads", trap)
        patch.setattr(pickle, "load", trap)
        yield


def forged(**entries: Any) -> bytes:
    """A map as msgpack-numpy writes it, with some entries replaced."""
    honest = {"nd": True, "type": "<f4", "kind": b"", "shape": [2], "data": bytes(8)}
    packed: bytes = msgpack.packb({key.encode(): value for key, value in (honest | entries).items()})
    return packed


def plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(plain(key) and plain(entry) for key, entry in value.items())
    return type(value) in PLAIN


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k", b"\x81\xc4\x01a"], ids=["lists", "maps", "binary keys"])
def test_values_that_are_nested_too_deeply_are_refused(opening: bytes) -> None:
    assert str(unpack(opening * MAX_DEPTH + b"\x01")).count("1") == 1
    for depth in (MAX_DEPTH + 1, 500, 1000, 1020, 60_000):
        with pytest.raises(RemoteProtocolError):
            unpack(opening * depth + b"\x01")


@given(plain_arrays)
def test_arrays_travel_in_the_bytes_of_msgpack_numpy_and_come_back_as_they_were(array: np.ndarray) -> None:
    packed = pack({"array": array})
    assert packed == msgpack.packb({"array": array}, default=msgpack_numpy.encode)
    found = unpack(packed)["array"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_give_plain_values_or_a_remote_error(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        assert plain(unpack(data))


@settings(max_examples=100)
@given(values | plain_arrays, st.data())
def test_damaged_messages_give_plain_values_or_a_remote_error(value: Any, data: st.DataObject) -> None:
    packed = bytearray(pack([value, np.zeros(2, "<f4")]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        assert plain(unpack(bytes(packed)))


@settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "nd": values,
            "type": st.sampled_from(DTYPES) | values,
            "kind": st.sampled_from([b"", b"O", b"V"]) | values,
            "shape": st.lists(st.integers(-3, 2**63), max_size=10) | values,
            "data": st.binary(max_size=64) | values,
        },
    )
)
def test_a_forged_array_is_an_array_of_a_known_dtype_or_refused(entries: dict[str, Any]) -> None:
    with suppress(RemoteProtocolError):
        found = unpack(forged(**entries))
        assert isinstance(found, np.ndarray)
        assert found.dtype.str in DTYPES


@pytest.mark.parametrize(
    "entries",
    [
        {"kind": b"O", "type": "|O", "data": pickle.dumps(print)},
        {"kind": b"V", "type": [["a", "<f4"], ["b", "<f4"]]},
        {"type": "|O"},
        {"type": "<c8", "shape": [1]},
        {"shape": [3]},
        {"shape": [True, 2]},
        {"shape": [2] + [1] * MAX_NDIM},
        {"shape": [2**62, 4], "type": "<f4"},
        {"data": "12345678"},
        {"data": bytes(MAX_ARRAY_BYTES + 4), "shape": [MAX_ARRAY_BYTES // 4 + 1]},
    ],
    ids=str,
)
def test_a_forged_array_is_refused(entries: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(forged(**entries))


def test_arrays_come_back_whatever_their_memory_layout_and_whether_keys_are_bytes_or_text() -> None:
    array = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    np.testing.assert_array_equal(unpack(pack(array)), array)
    found = unpack(pack(np.float32(1.5)))
    assert (found.dtype, found.shape, float(found)) == (np.float32, (), 1.5)
    np.testing.assert_array_equal(unpack(forged()), np.zeros(2, np.float32))
    entries = {"nd": True, "type": "|u1", "kind": "", "shape": [2], "data": b"\1\2"}
    np.testing.assert_array_equal(unpack(msgpack.packb(entries)), [1, 2])


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # announces a list of 2**32 - 1 entries
        b"\xdf\xff\xff\xff\xff",  # such a map
        b"\xc6\xff\xff\xff\xff",  # such bytes
        b"\xc9\xff\xff\xff\xff\x05",  # such an extension
        b"",
        b"\xc0\xc0",  # more behind
        b"\xc1",  # an unused code
        b"\xa1\xff",  # bad utf-8
        b"\x81\x90\xc0",  # a list as a key
        b"\xd6\xff\0\0\0\5",  # a timestamp
    ],
)
def test_bytes_that_are_no_plain_value_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(data)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [
        np.array([print], object),
        np.zeros(2, [("a", "<f4")]),
        np.zeros(2, ">f4"),
        np.zeros((1,) * (MAX_NDIM + 1)),
        np.zeros(MAX_ARRAY_BYTES + 1, "u1"),
        2**64,
        object(),
        ENDLESS,
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_packing_a_value_that_no_peer_would_accept_is_a_local_error(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        pack([value])
