"""What observations and actions are, as peers describe them: gymnasium's spaces, without its code.

A space is one array, or named parts that are spaces themselves. Its rows are laid out by `field_of`; in torch an
observation or action of several parts is a dict of tensors by name, nested as the space is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.text import short
from zerobeast.common.wire.codec import DTYPES
from zerobeast.common.wire.description import SHAPE, Rule, is_shape
from zerobeast.common.wire.layout import Block, Field

MIN_IMAGE_SIDE = 5  #: anything smaller is a matrix of numbers
UNBOUNDED_LIMIT = 1e37  #: a box this wide has no bounds: some environments write the largest float for infinity
MAX_CHOICES = 1 << 16  #: of a space, over all its components
MAX_START = 1 << 62
MAX_PARTS = 64  #: of a space, over all levels
MAX_NAME = 64  #: characters of a name that a peer gives to a field

ArrayKind = Literal["discrete", "multi_discrete", "multi_binary", "box"]
CompositeKind = Literal["dict", "tuple"]


@dataclass(frozen=True)
class ArraySpace:
    """A space of arrays. Choices are counted from 0 in rows and by policies, whatever the environment counts them from.

    `sizes` counts the choices: (n,) for discrete, one per component for multi_discrete, empty for the others. `low` and
    `high` are the bounds of a box, one for all components or one for each in C order, empty for the others.

    Examples:
      >>> import zerobeast as zb
      >>> zb.ArraySpace.box((2, 3), low=(-1.0,), high=(1.0,)).shape
      (2, 3)
      >>> zb.ArraySpace.multi_discrete(3, 5).choices
      (3, 5)
    """

    kind: ArrayKind
    dtype: str = "<i8"  #: of an element on the wire
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    narrow: bool = False  #: a box of bytes that do not take all values from 0 to 255
    #: what the environment counts the choices of each component from, empty for 0: no difference to policies
    start: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def discrete(cls, n: int) -> Self:
        """n choices, numbered from 0."""
        return cls("discrete", sizes=(n,))

    @classmethod
    def multi_discrete(cls, *sizes: int, shape: tuple[int, ...] | None = None) -> Self:
        """Components with `sizes` choices each."""
        return cls("multi_discrete", shape=(len(sizes),) if shape is None else shape, sizes=sizes)

    @classmethod
    def box(
        cls,
        shape: tuple[int, ...],
        dtype: str = "<f4",
        low: tuple[float, ...] = (-math.inf,),
        high: tuple[float, ...] = (math.inf,),
    ) -> Self:
        """Numbers between bounds."""
        return cls("box", dtype, shape, low=low, high=high)

    @property
    def arrays(self) -> tuple[ArraySpace, ...]:
        """The array spaces that it consists of."""
        return (self,)

    def count_from_zero(self, values: Any) -> Any:
        """Values [..., *shape] of the environment with choices that count from 0."""
        return values - np.reshape(self.start, self.shape) if self.start else values

    def own(self, values: NDArray[Any]) -> NDArray[Any]:
        """Its inverse, of the same type."""
        return values + np.reshape(self.start, self.shape).astype(self.dtype) if self.start else values

    @property
    def bits(self) -> bool:
        """Whether each element is 0 or 1, so that observations of it are packed in rows."""
        return self.kind == "multi_binary" or (self.kind == "box" and self.dtype == "|b1")

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each component, in C order; empty for a box."""
        return (2,) * math.prod(self.shape) if self.kind == "multi_binary" else self.sizes

    @property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lowest and highest values of a box, [*shape] each."""
        low, high = (
            np.full(self.shape, bound[0]) if len(bound) == 1 else np.reshape(bound, self.shape)
            for bound in (self.low, self.high)
        )
        return low, high

    @property
    def bounded(self) -> NDArray[np.bool_]:
        """Which components of a box are between bounds, or fixed because these are equal, [*shape]."""
        low, high = self.bounds
        return high - low < UNBOUNDED_LIMIT

    @property
    def full_bytes(self) -> bool:
        """Whether it is a box of bytes that may take all values from 0 to 255, as pixels do."""
        bytes_ = self.kind == "box" and self.dtype == "|u1"
        return bytes_ and not self.narrow and min(self.low) <= 0 and max(self.high) >= 255

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of images, [H, W], [H, W, C] or [C, H, W], or stacks of the last two; None for others."""
        shape = self.shape[-3:] if self.kind == "box" and len(self.shape) <= 4 else ()
        if len(shape) == 3:
            shape = shape[1:] if self.channels_first else shape[:2]
        return (shape[0], shape[1]) if len(shape) == 2 and min(shape) >= MIN_IMAGE_SIDE else None

    @property
    def channels_first(self) -> bool:
        """Whether images are [C, H, W], not [H, W, C]: two sizes that are alike are the sides, else the larger two."""
        outer, middle, inner = (1, *self.shape)[-3:]
        if (outer == middle) != (middle == inner):
            return middle == inner
        return outer < inner

    def rules(self, field: str) -> Iterator[Rule]:
        """Rules that it must satisfy; `field` is its name in error sentences."""
        box = self.kind == "box"
        yield self.kind in get_args(ArrayKind), f"{field}.kind", self.kind, " or ".join(_KINDS)
        dtypes = DTYPES if box else [name for name in DTYPES if np.dtype(name).kind in "iub"]
        yield self.dtype in dtypes, f"{field}.dtype", self.dtype, " or ".join(dtypes)
        yield is_shape(self.shape), f"{field}.shape", self.shape, SHAPE
        n = math.prod(self.shape)
        if not box:
            yield n <= MAX_CHOICES, f"{field}.shape", self.shape, f"at most {MAX_CHOICES} components"
            discrete = self.kind == "discrete"
            yield not (discrete and self.shape), f"{field}.shape", self.shape, "none, since it is discrete"
        sizes = n if self.kind in ("discrete", "multi_discrete") else 0
        yield len(self.sizes) == sizes, f"{field}.sizes", self.sizes, f"{sizes} of them, by kind and shape"
        yield min(self.sizes, default=1) >= 1, f"{field}.sizes", self.sizes, "each at least 1"
        yield sum(self.choices) <= MAX_CHOICES, f"{field}.sizes", self.sizes, f"a sum of at most {MAX_CHOICES}"
        fits = len(self.start) in (0, sizes) and all(abs(at) < MAX_START for at in self.start)
        yield fits, f"{field}.start", self.start, f"none or {sizes} of them, by kind and shape"
        counts, expected = ((1, n), f"1 or {n} of them, by shape") if box else ((0,), "none of them, by kind")
        for name, values in (("low", self.low), ("high", self.high)):
            yield len(values) in counts, f"{field}.{name}", values, expected
        if box:
            most = max(len(self.low), len(self.high))  # not `bounds`: a peer's shape may be larger than the memory
            low, high = (bound * most if len(bound) == 1 else bound for bound in (self.low, self.high))
            ordered = all(map(operator.le, low, high))
            yield ordered, f"{field}.low", self.low, f"nothing above {field}.high, {short(self.high)}"


class Part(NamedTuple):
    """One of several spaces."""

    name: str  #: in a tuple, its index: "0", "1", ...
    space: Space


@dataclass(frozen=True)
class CompositeSpace:
    """Several spaces, by name or in order."""

    kind: CompositeKind
    spaces: tuple[Part, ...]

    @property
    def arrays(self) -> tuple[ArraySpace, ...]:
        """The array spaces that it consists of, over all levels, in order."""
        return tuple(array for part in self.spaces for array in part.space.arrays)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each component of each array."""
        return tuple(size for array in self.arrays for size in array.choices)

    def rules(self, field: str) -> Iterator[Rule]:
        """Rules that it must satisfy; `field` is its name in error sentences."""
        yield self.kind in get_args(CompositeKind), f"{field}.kind", self.kind, " or ".join(_KINDS)
        count, names = len(self.arrays), [part.name for part in self.spaces]
        yield len(names) >= 1 and count <= MAX_PARTS, f"{field}.spaces", count, f"1 to {MAX_PARTS} of them"
        for name in names:
            fits = 0 < len(name) <= MAX_NAME and name.isprintable() and "/" not in name and names.count(name) == 1
            yield fits, f"{field}.spaces", name, f"each name once, of 1 to {MAX_NAME} characters without /"
        numbers = [str(index) for index in range(len(names))]
        yield self.kind == "dict" or names == numbers, f"{field}.spaces", names, "names 0, 1, ... in a tuple"
        for name, space in self.spaces:
            yield from space.rules(f"{field}.{name}")
        yield sum(self.choices) <= MAX_CHOICES, field, sum(self.choices), f"at most {MAX_CHOICES} choices in all"


Space = ArraySpace | CompositeSpace
_KINDS = (*get_args(ArrayKind), *get_args(CompositeKind))


def field_of(name: str, space: Space, *lead: int, packed: bool = False) -> Field | Block:
    """The field of a row that holds values of a space: one value, or an array [*lead] of them.

    If it is `packed`, arrays of bits take a byte for eight elements (`zerobeast.common.wire.bits`).
    """
    if not isinstance(space, ArraySpace):
        return Block(name, tuple(field_of(part.name, part.space, packed=packed) for part in space.spaces), lead)
    if packed and space.bits:
        return Field(name, "|u1", (*lead, -(-math.prod(space.shape) // 8)))
    return Field(name, space.dtype, (*lead, *space.shape))


def iterate_arrays(space: Space, value: Any) -> Iterator[tuple[ArraySpace, Any]]:
    """Each array of a space with its part of `value`: a dict, a tuple or rows with names, nested as the space is."""
    if isinstance(space, ArraySpace):
        yield space, value
    else:
        for part in space.spaces:
            yield from iterate_arrays(part.space, value[int(part.name) if isinstance(value, tuple) else part.name])


def array_names(space: Space, prefix: str = "") -> Iterator[str]:
    """The name of each array of a space, such as "camera.depth", in order; "" if it is an array itself."""
    if isinstance(space, ArraySpace):
        yield prefix[:-1]
    else:
        for part in space.spaces:
            yield from array_names(part.space, f"{prefix}{part.name}.")


def nest_values(space: Space, values: Iterator[Any], *, tuples: bool = False) -> Any:
    """Make a value of the space from one value per array, in order: that value, or dicts nested as the space is.

    With `tuples`, a space of kind "tuple" gets a tuple, as gymnasium has it.
    """
    if isinstance(space, ArraySpace):
        return next(values)
    parts = {part.name: nest_values(part.space, values, tuples=tuples) for part in space.spaces}
    return tuple(parts.values()) if tuples and space.kind == "tuple" else parts


def map_arrays(space: Space, change: Callable[[ArraySpace], ArraySpace]) -> Space:
    """The same space of other arrays."""
    if isinstance(space, ArraySpace):
        return change(space)
    return replace(space, spaces=tuple(Part(part.name, map_arrays(part.space, change)) for part in space.spaces))


def count_from_zero(space: Space) -> Space:
    """The same space whose choices count from 0 for the environment, too."""
    return map_arrays(space, lambda array: replace(array, start=()))


def drop_bounds(space: ArraySpace) -> ArraySpace:
    """The same space without bounds, of which policies use only `narrow` and two servers may state others."""
    narrow = space.dtype == "|u1" and not space.full_bytes
    return replace(space, low=(-math.inf,), high=(math.inf,), narrow=narrow) if space.kind == "box" else space
