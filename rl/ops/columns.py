"""Rows of bytes as typed tensors: the torch side of `zerobeast.common.wire.layout`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


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
