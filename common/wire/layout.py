"""The layout of rows. A payload is always n rows of one `RecordSpec`.

In this process the layout is a numpy structured dtype, so a message is received straight into rows of a preallocated
batch and its fields are views of them:

    spec = RecordSpec.of(obs=("|u1", (84, 84)), reward=("<f4", ()))
    batch = np.zeros(64, spec.dtype)      # a message of 16 rows is received into batch[:16]
    batch["obs"]                          # [64, 84, 84], no copy

A field may itself be a block of fields, such as an observation of several parts: `batch["obs"]["camera"]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from zerobeast.common.errors import RemoteProtocolError

FIELD_ALIGNMENT = 8
ROW_ALIGNMENT = 64
MAX_ROW_BYTES = 256 << 20


class Field(NamedTuple):
    """One named array in a row."""

    name: str
    dtype: str  #: numpy's notation, one of `zerobeast.common.wire.codec.DTYPES`
    shape: tuple[int, ...]


class Block(NamedTuple):
    """A group of fields under one name, single or in an array; each field begins at a multiple of 8 bytes."""

    name: str
    fields: tuple[Field | Block, ...]
    shape: tuple[int, ...] = ()


def item_bytes(field: Field | Block) -> int:
    """Size of one element in bytes; that of a block includes padding."""
    if isinstance(field, Field):
        return np.dtype(field.dtype).itemsize
    return sum(_align(math.prod(part.shape) * item_bytes(part), FIELD_ALIGNMENT) for part in field.fields)


def _align(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _numpy(fields: tuple[Field | Block, ...], alignment: int) -> np.dtype[Any]:
    """The structured dtype of fields, each at a multiple of 8 bytes, in rows padded to `alignment`."""
    offset, offsets = 0, []
    for field in fields:
        offsets.append(offset)
        offset += _align(math.prod(field.shape) * item_bytes(field), FIELD_ALIGNMENT)
    elements = [field.dtype if isinstance(field, Field) else _numpy(field.fields, FIELD_ALIGNMENT) for field in fields]
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [(element, field.shape) for element, field in zip(elements, fields, strict=True)],
            "offsets": offsets,
            "itemsize": max(alignment, _align(offset, alignment)),
        }
    )


@dataclass(frozen=True)
class RecordSpec:
    """The layout of one row: fields in order, each aligned to 8 bytes, the row padded to 64.

    Raises:
      RemoteProtocolError: a row would not fit a frame; its sizes come from a peer's description of its environment.
    """

    fields: tuple[Field | Block, ...]

    def __post_init__(self) -> None:
        if sum(math.prod(field.shape) * item_bytes(field) for field in self.fields) > MAX_ROW_BYTES:
            raise RemoteProtocolError(f"a row is larger than {MAX_ROW_BYTES} bytes", "spec")

    @classmethod
    def of(cls, *blocks: Field | Block, **fields: tuple[str, tuple[int, ...]]) -> Self:
        """Build a layout from fields, followed by those given as name=(dtype, shape)."""
        return cls((*blocks, *(Field(name, dtype, tuple(shape)) for name, (dtype, shape) in fields.items())))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The row as a numpy structured dtype, padding included."""
        return _numpy(self.fields, ROW_ALIGNMENT)

    def offset(self, name: str) -> int:
        """Offset of a field in a row, in bytes."""
        fields = self.dtype.fields
        assert fields is not None, "a record has fields"
        return fields[name][1]

    @property
    def row_bytes(self) -> int:
        """Size of one row on the wire."""
        return self.dtype.itemsize
