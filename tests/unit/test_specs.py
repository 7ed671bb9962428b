"""What travels: descriptions of environments and policies, and values; all else is refused on both sides."""

import math
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.build.errors import refuses
from tests.helpers import row_layout
from zerobeast.common.errors import LocalProtocolError, RemoteProtocolError
from zerobeast.common.wire.codec import DTYPES, MAX_ARRAY_BYTES, MAX_DEPTH, MAX_NDIM, pack, unpack
from zerobeast.common.wire.layout import MAX_ROW_BYTES, Field, RecordSpec, item_bytes
from zerobeast.common.wire.records import rollout_record, step_record
from zerobeast.common.wire.spaces import MAX_CHOICES, ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import MAX_CORE_SIZE, EnvSpec, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value

layouts = st.lists(
    st.builds(Field, st.text(max_size=5), st.sampled_from(DTYPES), st.lists(st.integers(0, 6), max_size=3).map(tuple)),
    min_size=1,
    max_size=5,
    unique_by=lambda field: field.name,
).map(lambda fields: RecordSpec(tuple(fields)))
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=6) | st.binary(max_size=6) | st.just(np.zeros(3)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=5),
    max_leaves=8,
)
PONG = EnvSpec("PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), 4, 4)
GRID = EnvSpec("Grid", ArraySpace.box((3,)), ArraySpace("multi_discrete", shape=(2,), sizes=(3, 5)))
PAIR = CompositeSpace("tuple", (Part("0", ArraySpace.discrete(3)), Part("1", ArraySpace("multi_binary", "|i1", (4,)))))
KICK = Part("kick", ArraySpace.box((2,), low=(-1.0,), high=(1.0,)))
ROBOT = EnvSpec(
    "Robot",
    CompositeSpace("dict", (Part("camera", ArraySpace.box((5, 6), "|u1")), Part("pair", PAIR))),
    CompositeSpace("dict", (KICK, Part("who", ArraySpace.multi_discrete(2, 3)))),
    action_mask=True,
)
HAND = EnvSpec("Hand", ArraySpace.box((8,), "<f8"), ArraySpace.box((2,), low=(-1.0, -2.0), high=(1.0, float("inf"))))


@given(layouts)
def test_fields_are_aligned_to_8_bytes_in_order_and_rows_to_64(spec: RecordSpec) -> None:
    end = 0
    for field, (name, dtype, shape, offset) in zip(spec.fields, row_layout(spec), strict=True):
        assert (name, dtype, shape) == (field.name, field.dtype, list(field.shape))
        assert offset == -(-end // 8) * 8 == spec.dtype.fields[name][1]  # type: ignore[index]
        end = offset + int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert spec.row_bytes == max(64, -(-end // 64) * 64)


def test_a_row_that_fits_no_frame_is_refused_before_memory_is_taken() -> None:
    assert RecordSpec.of(a=("|u1", (MAX_ROW_BYTES,))).row_bytes == MAX_ROW_BYTES
    with refuses(kind=RemoteProtocolError, reason="spec"):
        RecordSpec.of(a=("|u1", (MAX_ROW_BYTES,)), b=("|u1", (1,)))
    with refuses(kind=RemoteProtocolError, reason="spec"):
        rollout_record(replace(PONG, obs=ArraySpace.box((8192, 8192), "|u1")), PolicySpec((), 0), unroll_length=10_000)


@pytest.mark.parametrize("env", [PONG, GRID, HAND, ROBOT], ids=lambda env: env.env_id)
def test_an_environment_comes_back_as_it_was(env: EnvSpec) -> None:
    assert all(holds for holds, *_ in env.rules())
    assert EnvSpec.from_wire(unpack(pack(env.to_wire()))) == env
    policy = PolicySpec(logits_and_value(6), 512)
    assert PolicySpec.from_wire(unpack(pack(policy.to_wire()))) == policy


def test_a_nested_observation_is_a_block_of_its_parts_each_at_a_multiple_of_8_bytes() -> None:
    record = step_record(ROBOT)
    offsets = {name: offset for name, _, _, offset in row_layout(record)}
    assert offsets == {"obs": 0, "action_mask": 48, "reward": 56, "terminated": 64, "truncated": 72, "first": 80}
    rows = np.zeros(2, record.dtype)
    rows["obs"]["pair"]["1"][1] = 0b1101
    assert rows.view(np.uint8).reshape(2, -1)[1, 40:48].tolist() == [0b1101, *[0] * 7], "4 booleans, packed"
    assert item_bytes(record.fields[0]) == record.dtype["obs"].itemsize == 48
    rollout = rollout_record(ROBOT, PolicySpec((), 5), 3)
    assert rollout.dtype["obs"].shape == rollout.dtype["last_action"].shape == (4,)
    assert row_layout(rollout)[-1][:3] == ["core_state", "<f4", [5]]


def test_a_description_may_leave_out_that_its_bytes_take_all_values_and_the_points_of_bounds() -> None:
    grid = replace(PONG, obs=ArraySpace.box((7, 7, 3), "|u1", (0.0,), (9.0,))).for_policies()
    for spec in (PONG.for_policies(), grid):
        wire = spec.to_wire()
        narrow = wire["obs"].pop("narrow")
        assert (EnvSpec.from_wire(wire) == spec) is not narrow
    wire = HAND.to_wire()
    wire["action"]["low"] = [-1, -2]
    assert EnvSpec.from_wire(wire) == HAND, "whole numbers may stand for bounds"


@given(anything)
def test_any_value_is_a_description_or_a_remote_error(entries: Any) -> None:
    for description in (EnvSpec, PolicySpec):
        with pytest.raises(RemoteProtocolError):
            description.from_wire(entries)


@given(
    st.sampled_from([PONG, GRID, HAND, ROBOT]),
    st.dictionaries(st.sampled_from(list(PONG.to_wire())), anything, max_size=2),
    st.dictionaries(st.sampled_from(list(PONG.to_wire()["action"])), anything, max_size=2),
)
def test_a_changed_description_is_possible_or_refused(env: EnvSpec, changes: Any, action: Any) -> None:
    wire = env.to_wire()
    wire["action"] |= action
    with suppress(RemoteProtocolError):
        found = EnvSpec.from_wire(wire | changes)
        assert all(holds for holds, *_ in found.rules())
        assert EnvSpec.from_wire(found.to_wire()) == found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("obs", {"kind": "box", "shape": [84, 0]}),
        ("obs", {"kind": "box", "shape": [1] * 8}),
        ("obs", {"kind": "box", "shape": [2**40, 2**20]}),
        ("obs", {"kind": "box", "shape": "84"}),
        ("obs", {"low": [0.0, 1.0]}),
        ("obs", {"sizes": [3]}),
        ("obs", {"kind": "tuple", "spaces": []}),
        ("obs", {"kind": "tuple", "spaces": [["1", PONG.to_wire()["obs"]]]}),
        ("obs", {"kind": "dict", "spaces": [["a", PONG.to_wire()["obs"]]] * 2}),
        ("obs", {"kind": "dict", "spaces": [["a/b", PONG.to_wire()["obs"]]]}),
        ("obs", {"kind": "dict", "spaces": [[str(i), PONG.to_wire()["obs"]] for i in range(65)]}),
        ("action", {"kind": "box", "dtype": "<f8", "shape": [], "sizes": [], "low": [0.0], "high": [1.0]}),
        ("frame_stack", 0),
        ("frame_skip", True),
        ("action", None),
        ("action", {"kind": "discrete", "shape": [], "sizes": [], "low": [], "high": []}),
        ("action", {"kind": "discrete", "shape": [], "sizes": [0], "low": [], "high": []}),
        ("action", {"kind": "discrete", "shape": [], "sizes": [MAX_CHOICES + 1], "low": [], "high": []}),
        ("action", {"kind": "multi_discrete", "shape": [2], "sizes": [3], "low": [], "high": []}),
        ("action", {"kind": "box", "shape": [2], "sizes": [], "low": [0.0], "high": [1.0]}),
        ("action", {"kind": "box", "shape": [1], "sizes": [], "low": [2.0], "high": [1.0]}),
        ("action", {"kind": "box", "shape": [1], "sizes": [], "low": [float("nan")], "high": [1.0]}),
        ("action", {"kind": "box", "shape": [1], "sizes": [2], "low": [0.0], "high": [1.0]}),
    ],
    ids=str,
)
def test_an_impossible_environment_is_refused(key: str, value: Any) -> None:
    wire = PONG.to_wire()
    if key in ("obs", "action") and isinstance(value, dict) and "spaces" not in value:
        value = wire[key] | value
    with refuses(kind=RemoteProtocolError, reason="spec") as caught:
        EnvSpec.from_wire(wire | {key: value})
    assert str(caught.error).startswith(key)


@pytest.mark.parametrize("key", ["obs", "action"])
def test_a_shape_of_very_many_sizes_is_refused_before_multiplying(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """60,000 sizes fit a header, but their product is a number of 50 kB and takes seconds to compute."""

    def product(sizes: Any) -> int:
        assert len(sizes) <= MAX_NDIM
        return math.prod(sizes)

    for module in ("spaces", "specs", "layout"):
        monkeypatch.setattr(f"zerobeast.common.wire.{module}.math", SimpleNamespace(prod=product, inf=math.inf))
    wire = PONG.to_wire()
    wire[key]["shape"] = [127] * 60_000
    with pytest.raises(RemoteProtocolError):
        EnvSpec.from_wire(wire)


def test_a_missing_entry_is_named() -> None:
    for key in PONG.to_wire():
        with pytest.raises(RemoteProtocolError, match=key):
            EnvSpec.from_wire({name: value for name, value in PONG.to_wire().items() if name != key})


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"extras": [], "core_size": -1},
        {"extras": [], "core_size": MAX_CORE_SIZE + 1},
        {"extras": [["q", "<f4", [0]]], "core_size": 0},
        {"extras": [["q", "<f4", [1 << 30]]], "core_size": 0},
        {"extras": [["q", "<f4", []]] * 2, "core_size": 0},
        {"extras": [["reward", "<f4", []]], "core_size": 0},
        {"extras": [["a b", "<f4", []]], "core_size": 0},
        {"extras": [["q" * 65, "<f4", []]], "core_size": 0},
        {"extras": [[f"q{i}", "<f4", []] for i in range(33)], "core_size": 0},
    ],
    ids=str,
)
def test_an_impossible_policy_is_refused(wire: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        PolicySpec.from_wire(wire)


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
