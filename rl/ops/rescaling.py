"""Values on a smaller scale, for returns that differ by orders of magnitude from task to task.

h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, and its inverse (Pohlen et al. 2018, "Observe and Look Further", proposition
A.2; Kapturowski et al. 2019, section 2.3). Both are written without a difference of two nearly equal numbers, which
in float32 would leave four digits of a small value.
"""

import torch
from torch import Tensor

EPSILON = 1e-3  #: of the linear term, without which the slope of the inverse would be unbounded


def rescale(x: Tensor, eps: float = EPSILON) -> Tensor:
    """h(x), of any shape."""
    return x * (1.0 / (torch.sqrt(x.abs() + 1.0) + 1.0) + eps)


def unrescale(x: Tensor, eps: float = EPSILON) -> Tensor:
    """The inverse of h, of any shape."""
    # with y = h^-1(x), sqrt(|y| + 1) is 1 + |x| share
    share = 2.0 / (1.0 + 2.0 * eps + torch.sqrt((1.0 + 2.0 * eps) ** 2 + 4.0 * eps * x.abs()))
    return x * share * (x.abs() * share + 2.0)
