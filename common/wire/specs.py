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
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.codec import DTYPES, MAX_NDIM

FIELD_ALIGNMENT = 8
ROW_ALIGNMENT = 64
MAX_ROW_BYTES = 256 << 20
MIN_IMAGE_SIDE = 5  #: anything smaller is a matrix of numbers
MAX_CHOICES = 1 << 16  #: of an action space, over all its components
MAX_CORE_SIZE = 1 << 20
MAX_EXTRAS = 32  #: of a policy
MAX_NAME = 64  #: characters of a field that a peer names
#: of every rollout, which no extra may be named as
ROLLOUT_FIELDS = (
    "obs",
    "first",
    "reward",
    "terminated",
    "truncated",
    "action",
    "last_action",
    "policy_version",
    "core_state",
)


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


def _wrong(field: str, value: Any, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{field} is {_short(value)}, expected {expected}", "spec")


def _short(value: Any) -> str:
    """A value of a peer, made fit for a sentence."""
    return repr(list(value) if isinstance(value, tuple) else value)[:100]


def _read(kind: Any, value: Any, field: str) -> Any:
    """What a peer says of one field, as its kind: a plain type, a tuple of one, a Literal of texts or a dataclass.

    A whole number may stand for a float; no other type may differ.
    """
    named = _is_named_tuple(kind)
    wanted = list if named else {tuple: list, Literal: str}.get(get_origin(kind), dict if is_dataclass(kind) else kind)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise _wrong(field, value, f"a value of type {wanted.__name__}")
    if wanted is dict:
        prefix = field and f"{field}."
        return kind(
            **{name: _read(hint, value.get(name), prefix + name) for name, hint in get_type_hints(kind).items()}
        )
    if named:
        hints = get_type_hints(kind)
        if len(value) != len(hints):
            raise _wrong(field, value, f"[{', '.join(hints)}]")
        return kind(
            *(_read(hint, entry, f"{field}.{name}") for (name, hint), entry in zip(hints.items(), value, strict=True))
        )
    return tuple(_read(get_args(kind)[0], entry, field) for entry in value) if wanted is list else value


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple)


class _Description:
    """A dataclass that travels in HELLO and WELCOME."""

    def to_wire(self) -> dict[str, Any]:
        """As plain msgpack values."""
        return asdict(self, dict_factory=_plain)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_wire(cls, entries: Any) -> Self:
        """Inverse of `to_wire`.

        Raises:
          RemoteProtocolError: a key is missing or of the wrong type, or a rule does not hold.
        """
        spec: Self = _read(cls, entries, "")
        for holds, field, value, expected in spec.rules():
            if not holds:
                raise _wrong(field, value, expected)
        return spec

    def rules(self) -> Iterator[Rule]:
        """What has to be true of it; each rule may rely on those before it."""
        raise NotImplementedError


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: _plain_list(value) for name, value in pairs}


def _plain_list(value: Any) -> Any:
    return [_plain_list(entry) for entry in value] if isinstance(value, tuple) else value


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
class EnvSpec(_Description):
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
        yield self.obs_dtype in DTYPES, "obs_dtype", self.obs_dtype, " or ".join(DTYPES)
        yield _is_shape(self.obs_shape), "obs_shape", self.obs_shape, SHAPE
        yield self.frame_stack >= 1, "frame_stack", self.frame_stack, "1 or more"
        yield self.frame_skip >= 1, "frame_skip", self.frame_skip, "1 or more"
        size = math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize * self.frame_stack
        limit = f"at most {MAX_ROW_BYTES} bytes, with frame_stack {self.frame_stack}"
        yield size <= MAX_ROW_BYTES, "obs_shape", self.obs_shape, limit
        yield from self.action.rules()


@dataclass(frozen=True)
class PolicySpec(_Description):
    """What an actor has to know of a policy: what it answers besides an action, and how much it remembers."""

    extras: tuple[Field, ...]  #: of one answer, one environment: logits, a value, or whatever its algorithm learns from
    core_size: int  #: floats of recurrent state per environment, 0 for feed-forward

    def rules(self) -> Iterator[Rule]:
        yield len(self.extras) <= MAX_EXTRAS, "extras", len(self.extras), f"at most {MAX_EXTRAS} of them"
        names = [extra.name for extra in self.extras]
        for name, dtype, shape in self.extras:
            field = f"extras.{name}"[:100]
            fits = name.isidentifier() and len(name) <= MAX_NAME and name not in ROLLOUT_FIELDS
            yield fits, "extras", name, f"a name of at most {MAX_NAME} letters, none of {', '.join(ROLLOUT_FIELDS)}"
            yield names.count(name) == 1, "extras", name, "each name once"
            yield dtype in DTYPES, field, dtype, " or ".join(DTYPES)
            yield _is_shape(shape), field, shape, SHAPE
            yield math.prod(shape) <= 2 * MAX_CHOICES, field, shape, f"at most {2 * MAX_CHOICES} entries"
        yield 0 <= self.core_size <= MAX_CORE_SIZE, "core_size", self.core_size, f"0 to {MAX_CORE_SIZE}"
