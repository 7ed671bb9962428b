"""Normalised observations: running statistics that are part of the policy and travel with its weights.

What hardly changes tells nothing, and in Pong that is almost every pixel. Unnormalised, 99.9 % of the second moment of
the shallow torso's features is one constant vector; every noisy gradient is mostly noise along it, and what the ball
does has to be learned in the rest.

The learner feeds the statistics from its batches, before each update. Brokers get them as they get the weights, so the
behaviour policy is always one that the learner had.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from common.specs import EnvSpec

HORIZON = 1_000_000  #: observations; beyond, old ones fade, so that the statistics follow the policy
CLIP = 10.0  #: standard deviations, for vectors
MIN_VARIANCE = 1e-8


class ObsNorm(nn.Module):
    """Mean and variance of every entry of an observation, over those seen so far.

    Before the first it scales bytes to [0, 1] and leaves everything else as it is. Pictures are centred pixel by pixel
    but share one scale: a pixel that has never changed must not outweigh all others when it does.

    Args:
      env: whose observations.
    """

    mean: Tensor  #: [*frame] float32
    variance: Tensor  #: [*frame] float32
    count: Tensor  #: [] float32, observations behind them, at most HORIZON

    def __init__(self, env: EnvSpec) -> None:
        super().__init__()
        self._stacked = env.frame_stack > 1
        first_scale = 255.0 if env.obs_dtype == "|u1" else 1.0
        self.register_buffer("mean", torch.zeros(env.obs_shape))
        self.register_buffer("variance", torch.full(env.obs_shape, first_scale**2))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def observe(self, obs: Tensor) -> None:
        """Add observations [T, B, (k,) *frame], of a stack the newest frame."""
        newest = obs[:, :, -1] if self._stacked else obs
        entries = newest.flatten(0, 1).float()
        mean = entries.mean(0)
        variance = (entries - mean).square_().mean(0)  # torch.var_mean takes six times as long along this axis
        added = math.prod(newest.shape[:2])
        # Chan et al. 1983, equation 1.5: moments of two groups from those of each
        share = added / (self.count + added)
        delta = mean - self.mean
        self.variance += share * (variance - self.variance) + share * (1 - share) * delta.square()
        self.mean += share * delta
        self.count.copy_((self.count + added).clamp(max=HORIZON))

    def image_scale(self) -> Tensor:
        """What centred pictures are multiplied by, []."""
        return self.variance.mean().clamp(min=MIN_VARIANCE).rsqrt()

    def forward(self, obs: Tensor) -> Tensor:
        """Vectors [N, (k,) *frame] -> the same, normalised and clipped, float32."""
        scale = self.variance.clamp(min=MIN_VARIANCE).rsqrt()
        return ((obs.float() - self.mean) * scale).clamp(-CLIP, CLIP)
