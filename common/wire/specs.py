"""What travels, described: the layout of rows, and what an environment and a policy look like from outside.

A payload is always n rows of one `RecordSpec`. The same layout is a numpy structured dtype on this side, so a
message is received straight into rows of a preallocated batch and its fields are views of them:

    spec = RecordSpec.of(obs=("|u1", (84, 84)), reward=("<f4", ()))
    batch = np.zeros(64, spec.dtype)      # a message of 16 rows is received into batch[:16]
    batch["obs"]                          # [64, 84, 84], no copy
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.codec import DTYPES, MAX_NDIM

FIELD_ALIGNMENT = 8
ROW_ALIGNMENT = 64
MAX_ROW_BYTES = 256 << 20
MIN_IMAGE_SIDE = 5  #: anything smaller is a matrix of numbers
MAX_CHOICES = 1 << 16  #: of an action space, over all its components
MAX_CORE_SIZE = 1 << 20


class Field(NamedTuple):
    """One named array in a row."""

    name: str
    dtype: str  #: numpy's notation, one of `zerobeast.common.wire.codec.DTYPES`
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RecordSpec:
    """The layout of one row: fields in order, each aligned to 8 bytes, the row padded to 64.

    Raises:
      RemoteProtocolError: a row would not fit a frame; its sizes come from what a peer says of its environment.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in self.fields) > MAX_ROW_BYTES:
            raise RemoteProtocolError(f"a row is larger than {MAX_ROW_BYTES} bytes", "spec")

    @classmethod
    def of(cls, **fields: tuple[str, tuple[int, ...]]) -> Self:
        """Build a layout from name=(dtype, shape)."""
        return cls(tuple(Field(name, dtype, tuple(shape)) for name, (dtype, shape) in fields.items()))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The row as a numpy structured dtype, padding included."""
        offset, offsets = 0, []
        for field in self.fields:
            offsets.append(offset)
            offset += -(-math.prod(field.shape) * np.dtype(field.dtype).itemsize // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
        return np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": [(field.dtype, field.shape) for field in self.fields],
                "offsets": offsets,
                "itemsize": max(ROW_ALIGNMENT, -(-offset // ROW_ALIGNMENT) * ROW_ALIGNMENT),
            }
        )

    @property
    def row_bytes(self) -> int:
        """Size of one row on the wire."""
        return self.dtype.itemsize


Rule = tuple[bool, str, Any, str]  #: whether it holds; the field, its value, and what is expected of it
SHAPE = f"at most {MAX_NDIM - 1} sizes, each at least 1"


def _is_shape(shape: tuple[int, ...]) -> bool:
    return len(shape) < MAX_NDIM and all(size >= 1 for size in shape)


def _check(rules: Iterator[Rule]) -> None:
    """Raise RemoteProtocolError for the first that does not hold."""
    for holds, field, value, expected in rules:
        if not holds:
            raise _wrong(field, value, expected)


def _wrong(field: str, value: Any, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{field} is {_short(value)}, expected {expected}", "spec")


def _short(value: Any) -> str:
    """A value of a peer, made fit for a sentence."""
    return repr(list(value) if isinstance(value, tuple) else value)[:100]


def _entry(entries: Any, field: str, kind: type) -> Any:
    """One value of a peer's description, of exactly this type. Its key is the last part of the field's name."""
    value = entries.get(field.rpartition(".")[2]) if isinstance(entries, dict) else None
    if type(value) is not kind:
        raise _wrong(field, value, f"a value of type {kind.__name__}")
    return value


def _numbers(entries: Any, field: str, *kinds: type) -> tuple[Any, ...]:
    """A list of numbers in a peer's description."""
    values = _entry(entries, field, list)
    if any(type(value) not in kinds for value in values):
        raise _wrong(field, values, f"a list of entries of type {' or '.join(kind.__name__ for kind in kinds)}")
    return tuple(values)


ActionKind = Literal["discrete", "multi_discrete", "box"]


@dataclass(frozen=True)
class ActionSpec:
    """An action space.

    `sizes` counts the choices: (n,) for discrete, one per component for multi_discrete, empty for box, which has
    `low` and `high` instead, one entry per component in C order.
    """

    kind: ActionKind
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def dtype(self) -> str:
        """Element type of an action on the wire."""
        return "<f4" if self.kind == "box" else "<i8"

    def rules(self) -> Iterator[Rule]:
        """What has to be true of an action space; each rule may rely on those before it."""
        box, discrete = self.kind == "box", self.kind == "discrete"
        yield self.kind in get_args(ActionKind), "action.kind", self.kind, " or ".join(get_args(ActionKind))
        yield _is_shape(self.shape), "action.shape", self.shape, SHAPE
        n = math.prod(self.shape)
        yield n <= MAX_CHOICES, "action.shape", self.shape, f"at most {MAX_CHOICES} components"
        yield not (discrete and self.shape), "action.shape", self.shape, "none, since the action is discrete"
        sizes = 0 if box else n
        yield len(self.sizes) == sizes, "action.sizes", self.sizes, f"{sizes} of them, by kind and shape"
        yield min(self.sizes, default=1) >= 1, "action.sizes", self.sizes, "each at least 1"
        yield sum(self.sizes) <= MAX_CHOICES, "action.sizes", self.sizes, f"a sum of at most {MAX_CHOICES}"
        bounds = n if box else 0
        for name, values in (("action.low", self.low), ("action.high", self.high)):
            yield len(values) == bounds, name, values, f"{bounds} of them, by kind and shape"
        ordered = all(map(operator.le, self.low, self.high))
        yield ordered, "action.low", self.low, f"nothing above action.high, {_short(self.high)}"

    @classmethod
    def discrete(cls, n: int) -> Self:
        """n choices, numbered from 0."""
        return cls("discrete", (), (n,))


@dataclass(frozen=True)
class EnvSpec:
    """What a policy has to know of an environment.

    One frame travels per step; where `frame_stack` is k > 1, policies see the newest k frames of the episode, the
    first frame repeated before its start.
    """

    env_id: str  #: of a run with several environments: all of them, with commas
    obs_shape: tuple[int, ...]  #: of one frame
    obs_dtype: str
    action: ActionSpec
    frame_stack: int = 1
    frame_skip: int = 1  #: env_frames per agent_step

    def to_wire(self) -> dict[str, Any]:
        """As plain msgpack values."""
        return {
            "env_id": self.env_id,
            "obs_shape": list(self.obs_shape),
            "obs_dtype": self.obs_dtype,
            "action": {
                "kind": self.action.kind,
                "shape": list(self.action.shape),
                "sizes": list(self.action.sizes),
                "low": list(self.action.low),
                "high": list(self.action.high),
            },
            "frame_stack": self.frame_stack,
            "frame_skip": self.frame_skip,
        }

    @classmethod
    def from_wire(cls, entries: Any) -> Self:
        """Inverse of `to_wire`.

        Raises:
          RemoteProtocolError: a key is missing or of the wrong type.
        """
        action = _entry(entries, "action", dict)
        spec = cls(
            env_id=_entry(entries, "env_id", str),
            obs_shape=_numbers(entries, "obs_shape", int),
            obs_dtype=_entry(entries, "obs_dtype", str),
            action=ActionSpec(
                kind=_entry(action, "action.kind", str),
                shape=_numbers(action, "action.shape", int),
                sizes=_numbers(action, "action.sizes", int),
                low=tuple(map(float, _numbers(action, "action.low", int, float))),
                high=tuple(map(float, _numbers(action, "action.high", int, float))),
            ),
            frame_stack=_entry(entries, "frame_stack", int),
            frame_skip=_entry(entries, "frame_skip", int),
        )
        _check(spec.rules())
        return spec

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of a frame that is an image, [H, W], [H, W, C] or [C, H, W]; None of any other."""
        shape = self.obs_shape
        if len(shape) == 3:
            shape = shape[1:] if shape[0] < shape[2] else shape[:2]
        return (shape[0], shape[1]) if len(shape) == 2 and min(shape) >= MIN_IMAGE_SIDE else None

    def among(self, ids: str) -> EnvSpec:
        """The same under the name of all environments of a run, `env.id`, if it is one of them: they are alike."""
        return replace(self, env_id=ids) if self.env_id in ids.split(",") else self

    def rules(self) -> Iterator[Rule]:
        """What has to be true of an environment, so that it can exist and its rows can travel; in order."""
        yield self.obs_dtype in DTYPES, "obs_dtype", self.obs_dtype, " or ".join(DTYPES)
        yield _is_shape(self.obs_shape), "obs_shape", self.obs_shape, SHAPE
        yield self.frame_stack >= 1, "frame_stack", self.frame_stack, "1 or more"
        yield self.frame_skip >= 1, "frame_skip", self.frame_skip, "1 or more"
        size = math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize * self.frame_stack
        limit = f"at most {MAX_ROW_BYTES} bytes, with frame_stack {self.frame_stack}"
        yield size <= MAX_ROW_BYTES, "obs_shape", self.obs_shape, limit
        yield from self.action.rules()


@dataclass(frozen=True)
class PolicySpec:
    """What an actor has to know of a policy."""

    n_logits: int  #: parameters of the action distribution, unnormalised
    core_size: int  #: floats of recurrent state per environment, 0 for feed-forward

    def to_wire(self) -> dict[str, int]:
        """As plain msgpack values."""
        return {"n_logits": self.n_logits, "core_size": self.core_size}

    @classmethod
    def from_wire(cls, entries: Any) -> Self:
        """Inverse of `to_wire`.

        Raises:
          RemoteProtocolError: a key is missing or of the wrong type.
        """
        spec = cls(n_logits=_entry(entries, "n_logits", int), core_size=_entry(entries, "core_size", int))
        _check(spec.rules())
        return spec

    def rules(self) -> Iterator[Rule]:
        """What has to be true of a policy."""
        yield 0 < self.n_logits <= 2 * MAX_CHOICES, "n_logits", self.n_logits, f"1 to {2 * MAX_CHOICES}"
        yield 0 <= self.core_size <= MAX_CORE_SIZE, "core_size", self.core_size, f"0 to {MAX_CORE_SIZE}"
