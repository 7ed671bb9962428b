"""Normalised observations: running statistics that are part of the policy and travel with its weights.

What hardly changes tells nothing, and in Pong that is almost every pixel. Unnormalised, 99.9 % of the second moment of
the shallow torso's features is one constant vector; every noisy gradient is mostly noise along it, and what the ball
does has to be learned in the rest.

The learner adds each batch to the statistics once, after learning from it: a batch is learned from under the
normalisation that it was acted with, so that on policy every importance ratio is 1. Brokers get them as they get the
weights, so the behaviour policy is always one that the learner had.
"""

from __future__ import annotations

from torch import Tensor

from zerobeast.common.nets.moments import MIN_VARIANCE, Moments
from zerobeast.common.wire.specs import EnvSpec

CLIP = 10.0  #: standard deviations, for vectors


class ObsNorm(Moments):
    """Mean and variance of every entry of an observation, over those seen so far.

    Before the first it scales bytes to [0, 1] and leaves everything else as it is. Pictures are centred pixel by pixel
    but share one scale: a pixel that has never changed must not outweigh all others when it does.

    Args:
      env: whose observations.
    """

    def __init__(self, env: EnvSpec) -> None:
        first_scale = 255.0 if env.obs_dtype == "|u1" else 1.0
        super().__init__(env.obs_shape, first_scale**2)
        self._stacked = env.frame_stack > 1

    def observe(self, obs: Tensor) -> None:
        """Add observations [T, B, (k,) *frame], of a stack the newest frame."""
        newest = obs[:, :, -1] if self._stacked else obs
        self.add(newest.flatten(0, 1).float())

    def image_scale(self) -> Tensor:
        """What centred pictures are multiplied by, []."""
        return self.variance.mean().clamp(min=MIN_VARIANCE).rsqrt()

    def forward(self, obs: Tensor) -> Tensor:
        """Vectors [N, (k,) *frame] -> the same, normalised and clipped, float32."""
        scale = self.variance.clamp(min=MIN_VARIANCE).rsqrt()
        return ((obs.float() - self.mean) * scale).clamp(-CLIP, CLIP)
