"""Normalised observations: running statistics that are part of the policy and travel with its weights.

A pixel that hardly changes has no information, and in Pong almost no pixel changes. Without normalisation, one constant
vector is 99.9 % of the second moment of the shallow torso's features: every noisy gradient is mostly noise along it,
and what the ball does has to be learned from the rest.

The learner adds each batch to the statistics once, after learning from it: it learns from a batch under the
normalisation that the batch was acted with, so that on policy every importance ratio is 1. Brokers get the statistics
with the weights, so the behaviour policy is always one that the learner had.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.settings import NetConfig, Reading
from zerobeast.common.wire import ArraySpace, Space
from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.tree import leaves

CLIP = 10.0  #: standard deviations, for vectors
HORIZON = 1_000_000  #: entries; beyond this many, old ones fade, so that the statistics follow the policy
MIN_VARIANCE = 1e-8


class Moments(nn.Module):
    """Running mean and variance of entries of one shape, as tensors that are sent and saved with their module.

    Entries are those of all ranks, unless `alone` is set.

    Args:
      shape: of an entry.
      variance: its value before the first entry.
    """

    mean: Tensor  #: [*shape] float32
    variance: Tensor  #: [*shape] float32
    count: Tensor  #: [] float32, number of entries so far, at most HORIZON
    alone: bool = False  #: whether entries are those of this rank only

    def __init__(self, shape: tuple[int, ...] = (), variance: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.full(shape, variance))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def add(self, entries: Tensor) -> None:
        """Add entries [N, *shape] float32; where a square overflows, mean and variance do not change."""
        mean = entries.mean(0)
        variance = (entries - mean).square_().mean(0)  # torch.var_mean takes six times as long along this axis
        own = torch.full_like(self.count, len(entries)), mean, variance
        self.merge(*(own if self.alone else ranks.merge_moments(*own, "statistics")))

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Add `count` [] entries of this mean and variance, [*shape] each."""
        # Chan et al. 1983, equation 1.5: combines the moments of two groups
        share = (self.count + count).reciprocal() * count
        delta = mean - self.mean
        change = share * (variance - self.variance) + share * (1 - share) * delta.square()
        fits = change.isfinite()  # otherwise one number too large to be squared would stay for good
        self.variance += change.where(fits, 0.0)
        self.mean += (share * delta).where(fits, 0.0)
        self.count.copy_((self.count + count).clamp(max=HORIZON))


class ArrayNorm(Moments):
    """Mean and variance of every entry of an array, over the arrays so far.

    Before the first entry it does what a network does without it. Images are centred pixel by pixel but share one
    scale: a pixel that has never changed must not outweigh all others when it does.

    Args:
      space: of the arrays.
      frame_stack: k, how many arrays make an observation.
      scale: of a network without statistics.
    """

    def __init__(self, space: ArraySpace, frame_stack: int, scale: float = 1.0) -> None:
        super().__init__(space.shape, 255.0**2 if scale != 1.0 else 1.0)
        self._stacked = frame_stack > 1

    def observe(self, obs: Tensor) -> None:
        """Add observations [T, B, (k,) *frame], of each stack the newest frame."""
        newest = obs[:, :, -1] if self._stacked else obs
        self.add(newest.flatten(0, 1).float())

    def image_scale(self) -> Tensor:
        """The factor for centred images, []."""
        return self.variance.mean().clamp(min=MIN_VARIANCE).rsqrt()

    def forward(self, obs: Tensor) -> Tensor:
        """Vectors [N, (k,) *frame] -> the same, normalised and clipped, float32."""
        scale = self.variance.clamp(min=MIN_VARIANCE).rsqrt()
        return ((obs.float() - self.mean) * scale).clamp(-CLIP, CLIP)


class ObsNorm(nn.Module):
    """Normalisation of each array of an observation, in order. Choices need none.

    Args:
      space: of observations.
      frame_stack: k.
      net: how the network reads them.
    """

    def __init__(self, space: Space, frame_stack: int, net: NetConfig) -> None:
        super().__init__()
        self.of_arrays = [  #: of each array; None for choices
            ArrayNorm(array, frame_stack, Reading.of(array, net).scale) if array.kind == "box" else None
            for array in space.arrays
        ]
        self.arrays = nn.ModuleList(norm or nn.Identity() for norm in self.of_arrays)

    def observe(self, obs: Any, away: Tensor | None = None) -> None:
        """Add observations.

        Args:
          obs: [T, B, (k,) *frame], a tree of them if there are several arrays.
          away: [T, B] bool, which of them are of agents that do not act, and are left out.
        """
        some = away is not None and bool(away.any())
        for norm, values in zip(self.of_arrays, leaves(obs), strict=True):
            if norm is not None:
                norm.observe(values[~away].unsqueeze(0) if some and away is not None else values)

    def apart(self) -> "ObsNorm":
        """A copy without observations so far, to which those of this rank alone will be added."""
        other = deepcopy(self)
        for norm in filter(None, other.of_arrays):
            norm.alone = True
            norm.count.zero_()
        return other

    def join(self, other: "ObsNorm") -> None:
        """Add the observations of the copies `apart` of all ranks, which then have none again."""
        for norm, own in zip(self.of_arrays, other.of_arrays, strict=True):
            if norm is not None and own is not None:
                norm.merge(*ranks.merge_moments(own.count, own.mean, own.variance, "statistics"))
                own.count.zero_()
