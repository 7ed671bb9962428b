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
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from common.codec import DTYPES, MAX_NDIM, pack
from common.errors import RemoteProtocolError

FIELD_ALIGNMENT = 8
ROW_ALIGNMENT = 64
MAX_ROW_BYTES = 256 << 20
MAX_CHOICES = 1 << 16  #: of an action space, over all its components
MAX_CORE_SIZE = 1 << 20


class Field(NamedTuple):
    """One named array in a row."""

    name: str
    dtype: str  #: numpy's notation, one of `common.codec.DTYPES`
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

    @cached_property
    def spec_id(self) -> int:
        """32-bit fingerprint: two peers with the same id mean the same bytes."""
        return zlib.crc32(pack(self.entries()))

    def entries(self) -> list[list[Any]]:
        """[[name, dtype, shape, offset], ...]: what `spec_id` is the fingerprint of."""
        return [[f.name, f.dtype, list(f.shape), self.dtype.fields[f.name][1]] for f in self.fields]  # type: ignore[index]


def _entry(entries: Any, key: str, kind: type) -> Any:
    """One value of a peer's description, of exactly this type."""
    value = entries.get(key) if isinstance(entries, dict) else None
    if type(value) is not kind:
        raise RemoteProtocolError(f"{key!r} must be of type {kind.__name__}, not {value!r:.100}", "spec")
    return value


def _numbers(entries: Any, key: str, *kinds: type) -> tuple[Any, ...]:
    """A list of numbers in a peer's description."""
    values = _entry(entries, key, list)
    if any(type(value) not in kinds for value in values):
        raise RemoteProtocolError(f"{key!r} must be a list of numbers, not {values!r:.100}", "spec")
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

    @property
    def possible(self) -> bool:
        """Whether sizes and bounds fit the kind and the shape."""
        if len(self.shape) >= MAX_NDIM or any(n < 1 for n in (*self.shape, *self.sizes)):
            return False
        components = math.prod(self.shape)
        if not max(components, sum(self.sizes)) <= MAX_CHOICES:
            return False
        bounds = (len(self.sizes), len(self.low), len(self.high))
        if self.kind == "box":
            return bounds == (0, components, components) and all(map(operator.le, self.low, self.high))
        one = self.kind == "discrete" and not self.shape
        return bounds == (components, 0, 0) and (one or self.kind == "multi_discrete")

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
                kind=_entry(action, "kind", str),
                shape=_numbers(action, "shape", int),
                sizes=_numbers(action, "sizes", int),
                low=tuple(map(float, _numbers(action, "low", int, float))),
                high=tuple(map(float, _numbers(action, "high", int, float))),
            ),
            frame_stack=_entry(entries, "frame_stack", int),
            frame_skip=_entry(entries, "frame_skip", int),
        )
        if not spec.possible or not spec.action.possible:
            raise RemoteProtocolError(f"impossible environment description: {spec!s:.1000}", "spec")
        return spec

    def among(self, ids: str) -> EnvSpec:
        """The same under the name of all environments of a run, `env.id`, if it is one of them: they are alike."""
        return replace(self, env_id=ids) if self.env_id in ids.split(",") else self

    @property
    def possible(self) -> bool:
        """Whether such an environment can exist and its rows can travel."""
        sizes = (*self.obs_shape, self.frame_stack, self.frame_skip)
        if self.obs_dtype not in DTYPES or len(self.obs_shape) >= MAX_NDIM or any(n < 1 for n in sizes):
            return False
        return math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize * self.frame_stack <= MAX_ROW_BYTES


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
        if not (0 < spec.n_logits <= 2 * MAX_CHOICES and 0 <= spec.core_size <= MAX_CORE_SIZE):
            raise RemoteProtocolError(f"impossible policy description: {spec}", "spec")
        return spec
