"""Weights as one flat row of bytes, the form in which a version of the policy is sent.

Tensors follow one another in the order of `state_dict`, each C-contiguous. They are sent in float32, or int64 if they
are counts, whatever format and memory layout the module keeps them in. `layout_id` distinguishes two networks that
happen to have the same size.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.codec import pack

Bytes = npt.NDArray[np.uint8]
Kinds = Sequence[torch.dtype]  #: number formats of the tensors of a module, in order


def wire_dtypes(module: nn.Module) -> Kinds:
    """The number formats in which the tensors are sent."""
    return [torch.float32 if tensor.is_floating_point() else torch.int64 for tensor in module.state_dict().values()]


def module_dtypes(module: nn.Module) -> Kinds:
    """The number formats in which the module keeps its tensors."""
    return [tensor.dtype for tensor in module.state_dict().values()]


def tensor_sizes(module: nn.Module, kinds: Kinds) -> list[int]:
    """Bytes of each tensor."""
    tensors = module.state_dict().values()
    return [tensor.numel() * kind.itemsize for tensor, kind in zip(tensors, kinds, strict=True)]


def layout_id(module: nn.Module, kinds: Kinds | None = None) -> int:
    """32-bit fingerprint of names and shapes, of the `mark` of parts whose kind these do not show, and of `kinds`.

    Equal ids mean that a snapshot of one module fits the other.
    """
    entries: list[list[Any]] = [[name, list(tensor.shape)] for name, tensor in module.state_dict().items()]
    marks = [mark for part in module.modules() if isinstance(mark := getattr(part, "mark", None), str)]
    return zlib.crc32(pack([*entries, *filter(None, marks), *map(str, kinds or ())]))


@torch.no_grad()
def flatten(module: nn.Module) -> Bytes:
    """A fresh snapshot [n_bytes], read-only: it cannot change while it is being sent."""
    snapshot: Bytes = torch.cat(list(_parts(module, wire_dtypes(module)))).cpu().numpy()
    snapshot.flags.writeable = False
    return snapshot


@torch.no_grad()
def pack_into(module: nn.Module, kinds: Kinds, place: Tensor) -> None:
    """Write a snapshot in these formats into `place` [n_bytes] uint8."""
    for part, own in zip(torch.split(place, tensor_sizes(module, kinds)), _parts(module, kinds), strict=True):
        part.copy_(own)


@torch.no_grad()
def load_flat(module: nn.Module, buffer: npt.NDArray[Any], kinds: Kinds | None = None) -> None:
    """Copy a snapshot [n_bytes] uint8 into the tensors of `module`. `kinds`: its formats; None: `wire_dtypes`.

    Raises:
      RemoteProtocolError: its size does not fit the module; nothing was changed.
    """
    kinds = wire_dtypes(module) if kinds is None else kinds
    parts = tensor_sizes(module, kinds)
    if buffer.nbytes != sum(parts):
        raise RemoteProtocolError(f"weights of {buffer.nbytes} bytes, expected {sum(parts)}", "payload")
    flat = torch.from_numpy(buffer if buffer.flags.writeable else buffer.copy())
    for tensor, kind, part in zip(module.state_dict().values(), kinds, torch.split(flat, parts), strict=True):
        aligned = part if part.storage_offset() % kind.itemsize == 0 else part.clone()
        tensor.copy_(aligned.view(kind).view(tensor.shape))


def _parts(module: nn.Module, kinds: Kinds) -> Iterator[Tensor]:
    """Each tensor as bytes."""
    for tensor, kind in zip(module.state_dict().values(), kinds, strict=True):
        yield tensor.detach().reshape(-1).to(kind).view(torch.uint8)
