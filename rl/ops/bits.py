"""Arrays of bits as tensors: the torch side of `zerobeast.common.wire.bits`."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerobeast.common.wire import ArraySpace, Space, by_array, nested
from zerobeast.rl.ops.columns import torch_dtype


def observed(space: Space, fields: Any) -> Any:
    """Observations as their space has them, from the fields of rows on any device.

    Args:
      space: of one frame.
      fields: [..., *shape], or a tree of such, in which arrays of bits are [..., bytes] uint8.

    Returns:
      [..., *shape], or a tree of such. Spare bits of the last byte may be anything.
    """
    parts = by_array(space, fields)
    return nested(space, (_unpacked(array, values) if array.bits else values for array, values in parts))


def _unpacked(space: ArraySpace, packed: Tensor) -> Tensor:
    # one look-up a byte is the fastest on a CPU: comparing with masks takes ten times as long
    words = _words(packed.device).index_select(0, packed.reshape(-1).int())
    flat = words.view(packed.shape).view(torch.bool)[..., : math.prod(space.shape)]
    return flat.view(*packed.shape[:-1], *space.shape).to(torch_dtype(space.dtype))


@cache
def _words(device: torch.device) -> Tensor:
    """[256] int64: the eight bits of each byte as the bytes of a word."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(bits.view(np.int64)[:, 0].copy()).to(device)
