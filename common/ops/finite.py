"""Whether numbers are still numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

PLAIN = 1e18  #: whose square is far from the largest float32, 3.4e38


@torch.no_grad()
def squares_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether the square of every entry of every tensor is a finite number; what follows from larger ones is not.

    No entry is larger than the norm of all, which therefore nearly always tells: 0.02 ms for 0.15 million entries on a
    CPU. Otherwise by the extremes, which are not a number where any entry is not. All tensors are on one device, which
    is waited for once or twice.
    """
    some = [tensor for tensor in tensors if tensor.numel()]
    if not some or float(get_total_norm(some)) < PLAIN:
        return True
    return bool(torch.cat([torch.stack(tensor.aminmax()).float() for tensor in some]).square().isfinite().all())
