"""Running mean and variance, as tensors that are sent and saved with the module they are part of."""

import torch
from torch import Tensor, nn

HORIZON = 1_000_000  #: entries; beyond this many, old ones fade, so that the statistics follow the policy
MIN_VARIANCE = 1e-8


class Moments(nn.Module):
    """Running mean and variance of entries of one shape.

    Args:
      shape: of an entry.
      variance: its value before the first entry.
    """

    mean: Tensor  #: [*shape] float32
    variance: Tensor  #: [*shape] float32
    count: Tensor  #: [] float32, number of entries seen, at most HORIZON

    def __init__(self, shape: tuple[int, ...], variance: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.full(shape, variance))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def add(self, entries: Tensor) -> None:
        """Add entries [N, *shape] float32, N at least 1; where a square overflows, mean and variance do not change."""
        mean = entries.mean(0)
        variance = (entries - mean).square_().mean(0)  # torch.var_mean takes six times as long along this axis
        # Chan et al. 1983, equation 1.5: combines the moments of two groups
        share = len(entries) / (self.count + len(entries))
        delta = mean - self.mean
        change = share * (variance - self.variance) + share * (1 - share) * delta.square()
        fits = change.isfinite()  # otherwise one number too large to be squared would stay for good
        self.variance += change.where(fits, 0.0)
        self.mean += (share * delta).where(fits, 0.0)
        self.count.copy_((self.count + len(entries)).clamp(max=HORIZON))
