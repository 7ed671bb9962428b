"""Rows of bytes as typed tensors: the torch side of `zerobeast.common.wire.layout` and of its `bits`."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerobeast.common.wire import ArraySpace, Space, iterate_arrays, nest_values


def torch_dtype(dtype: str) -> torch.dtype:
    """The torch dtype for a dtype in numpy's notation."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def columns(content: Tensor, dtype: np.dtype[Any]) -> Any:
    """Views of the fields of rows.

    Args:
      content: [..., itemsize] uint8, the last dimension contiguous.
      dtype: of a row: numbers, an array of them, or named fields.

    Returns:
      [..., *shape]; for named fields a dict of such views, nested as the fields are.
    """
    if dtype.fields is not None:
        return {
            name: columns(content[..., offset : offset + kind.itemsize], kind)
            for name, (kind, offset, *_) in dtype.fields.items()
        }
    base, shape = dtype.subdtype or (dtype, ())
    if base.fields is not None:
        return columns(content.view(*content.shape[:-1], *shape, base.itemsize), base)
    typed = content.view(torch_dtype(base.str))
    return typed.view(*content.shape[:-1], *shape)


def read_observations(space: Space, fields: Any) -> Any:
    """Observations as their space has them, from the fields of rows on any device.

    Args:
      space: of one frame.
      fields: [..., *shape], or a tree of such, in which arrays of bits are [..., bytes] uint8.

    Returns:
      [..., *shape], or a tree of such. Spare bits of the last byte may be anything.
    """
    parts = iterate_arrays(space, fields)
    return nest_values(space, (_unpack(array, values) if array.bits else values for array, values in parts))


def _unpack(space: ArraySpace, packed: Tensor) -> Tensor:
    # one look-up a byte is the fastest on a CPU: comparing with masks takes ten times as long
    words = _words(packed.device).index_select(0, packed.reshape(-1).int())
    flat = words.view(packed.shape).view(torch.bool)[..., : math.prod(space.shape)]
    return flat.view(*packed.shape[:-1], *space.shape).to(torch_dtype(space.dtype))


@cache
def _words(device: torch.device) -> Tensor:
    """[256] int64: the eight bits of each byte as the bytes of a word."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(bits.view(np.int64)[:, 0].copy()).to(device)
