"""Weights as one flat row of bytes, the form in which a version of the policy travels.

Tensors stand one behind the other in the order of `state_dict`, each C-contiguous: float32, whatever format and memory
layout the module keeps them in, and int64 where they are counts. `layout_id` tells two networks apart that happen to
have the same size.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.codec import pack

Bytes = npt.NDArray[np.uint8]


def layout_id(module: nn.Module) -> int:
    """32-bit fingerprint of names and shapes: equal ids mean that a snapshot of one fits the other."""
    return zlib.crc32(pack([[name, list(tensor.shape)] for name, tensor in module.state_dict().items()]))


@torch.no_grad()
def flatten(module: nn.Module) -> Bytes:
    """A fresh snapshot [n_bytes], read-only: it stays as it is for as long as it takes to send it."""
    parts = [_sent(tensor.detach()).view(torch.uint8) for tensor in module.state_dict().values()]
    snapshot: Bytes = torch.cat(parts).cpu().numpy()
    snapshot.flags.writeable = False
    return snapshot


@torch.no_grad()
def load_flat(module: nn.Module, buffer: npt.NDArray[Any]) -> None:
    """Copy a snapshot [n_bytes] uint8 into the tensors of `module`, in place.

    Raises:
      RemoteProtocolError: it has another size than the module; nothing was changed.
    """
    tensors = list(module.state_dict().values())
    sizes = [tensor.numel() * _kind(tensor).itemsize for tensor in tensors]
    expected = sum(sizes)
    if buffer.nbytes != expected:
        raise RemoteProtocolError(f"weights of {buffer.nbytes} bytes, expected {expected}", "payload")
    flat = torch.from_numpy(buffer if buffer.flags.writeable else buffer.copy())
    for tensor, part in zip(tensors, torch.split(flat, sizes), strict=True):
        kind = _kind(tensor)
        aligned = part if part.storage_offset() % kind.itemsize == 0 else part.clone()
        tensor.copy_(aligned.view(kind).view(tensor.shape))


def _kind(tensor: Tensor) -> torch.dtype:
    """Of its numbers as they travel."""
    return torch.float32 if tensor.is_floating_point() else torch.int64


def _sent(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).to(_kind(tensor))
