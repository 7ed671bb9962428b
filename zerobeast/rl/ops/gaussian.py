"""Independent normal distributions over the components of a real action, from means and log standard deviations.

They are in units of the box of the actions: 0 is its middle, -1 and 1 are its bounds. A fresh policy, of mean 0 and
deviation 1, thus explores boxes of any size alike. A component without bounds keeps its own unit.

Parameters are bounded softly: a network's output counts unchanged within a range, and ever less beyond it. So no
deviation vanishes or explodes, no policy gets lost beyond the bounds of its box, and a gradient always leads back.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from zerobeast.common.wire import ArraySpace

EDGE = 1e-6  #: squashed actions keep this far from the bounds: float32 distinguishes 1 - 6e-8 from 1
NODES = 32  #: of the quadrature for the entropy of squashed actions


class Range(NamedTuple):
    """The range in which a parameter counts unchanged, and how far beyond it can get."""

    low: float
    high: float
    room: float

    def soft_clamp(self, values: Tensor) -> Tensor:
        """x within the range; e beyond an end, end + room e / (room + |e|). The slope is continuous and never 0."""
        inside = values.clamp(self.low, self.high)
        beyond = values - inside
        return inside + self.room * beyond / (self.room + beyond.abs())


class Box:
    """Conversion between actions [..., *shape] and units of their box [..., d].

    Args:
      action: the space.
    """

    def __init__(self, action: ArraySpace) -> None:
        self._shape = action.shape
        low, high = (bound.ravel() for bound in action.bounds)
        bounded = action.bounded.ravel()
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        self._middle, half = (low + high) / 2, (high - low) / 2
        self._half = np.where(half > 0, half, 1.0)  # of a component that is fixed: the env-server clips it
        self.log_volume = float(np.log(self._half).sum())  #: what log densities of actions are smaller by
        self._constants: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def units(self, actions: Tensor) -> Tensor:
        """[..., *shape] -> [..., d]."""
        middle, half = self._on(actions)
        flat = actions.reshape(*actions.shape[: actions.ndim - len(self._shape)], -1)
        return (flat - middle) / half

    def actions(self, units: Tensor) -> Tensor:
        """[..., d] -> [..., *shape]."""
        middle, half = self._on(units)
        return self.to_shape(middle + half * units)

    def lengths(self, units: Tensor) -> Tensor:
        """[..., d] -> [..., *shape]: the same without the middle."""
        return self.to_shape(self._on(units)[1] * units)

    def to_shape(self, values: Tensor) -> Tensor:
        """[..., d] -> [..., *shape]."""
        return values.view(*values.shape[:-1], *self._shape)

    def _on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Middle and half width, with the device and dtype of `like`."""
        key = (like.device, like.dtype)
        if key not in self._constants:
            with torch.inference_mode(mode=False):  # so that autograd can use them later
                middle, half = (torch.from_numpy(value).to(like) for value in (self._middle, self._half))
            self._constants[key] = (middle, half)
        return self._constants[key]


class Gaussian:
    """See `distributions.Distribution`. Actions may lie outside their box; the env-server clips them.

    Args:
      params: [..., 2 d], all means, then all log standard deviations.
      box: of the actions.
    """

    LOG_STD: ClassVar = Range(-4.0, 1.0, room=1.0)  #: up to [-5, 2]; `net.action_log_std` is within the range

    def __init__(self, params: Tensor, box: Box) -> None:
        self._mean, log_std = params.chunk(2, -1)
        self.log_std = self.LOG_STD.soft_clamp(log_std)
        self._box = box

    @property
    def mean(self) -> Tensor:
        """Of the normal distribution that actions are drawn from, [..., *shape]."""
        return self._box.actions(self._mean)

    @property
    def stddev(self) -> Tensor:
        """Likewise, in the unit of actions."""
        return self._box.lengths(self.log_std.exp())

    def sample(self, generator: torch.Generator) -> Tensor:
        """Actions [..., *shape]; gradients flow through them into the parameters."""
        noise = torch.empty_like(self._mean).normal_(generator=generator)
        return self._action(self._mean + self.log_std.exp() * noise)

    def mode(self) -> Tensor:
        """The median of every component, [..., *shape]: the mean, before any squashing."""
        return self._action(self._mean)

    def actions_at(self, deviations: float) -> Tensor:
        """The action [..., *shape] whose components all lie so many standard deviations above the median."""
        return self._action(self._mean + deviations * self.log_std.exp())

    def log_prob(self, actions: Tensor) -> Tensor:
        return self._log_density(self._box.units(actions)) - self._box.log_volume

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1) + self._box.log_volume

    def kl(self, other: Gaussian) -> Tensor:
        """[...]; boxes and squashing do not change it."""
        shift = ((self._mean - other._mean) / other.log_std.exp()).square().sum(-1)
        return 0.5 * shift + self._spread_kl(other)

    def kl_parts(self, other: Gaussian) -> tuple[Tensor, Tensor]:
        """KL(self || other) if only the mean differed, and if only the deviation did: [...] each.

        Song et al. 2019 (V-MPO), appendix C, with self as the old policy. The two do not add up to `kl`, which measures
        the distance of the means with the new deviation.
        """
        shift = ((self._mean - other._mean) / self.log_std.exp()).square().sum(-1)
        return 0.5 * shift, self._spread_kl(other)

    def _spread_kl(self, other: Gaussian) -> Tensor:
        wider = self.log_std - other.log_std
        return (0.5 * ((2 * wider).exp() - 1) - wider).sum(-1)

    def _action(self, drawn: Tensor) -> Tensor:
        """Actions [..., *shape] from what was drawn, [..., d]."""
        return self._box.actions(drawn)

    def _log_density(self, units: Tensor) -> Tensor:
        """[...] at [..., d], in units of the box."""
        deviations = (units - self._mean) / self.log_std.exp()
        return (-0.5 * deviations.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class SquashedGaussian(Gaussian):
    """tanh of normals, which fills the box and never leaves it (Haarnoja et al. 2018, appendix C).

    What was drawn before the tanh can be recovered from an action up to 7.25, where `EDGE` cuts it off, which biases
    score and entropy. Bounded means and deviations keep draws below that: a mean of 4, whose tanh is 0.9993, is 3
    deviations away if the deviation is 1.

    Args:
      params: as for `Gaussian`, before the tanh.
      box: that the actions fill; it has bounds.
    """

    MEAN: ClassVar = Range(-3.0, 3.0, room=1.0)
    LOG_STD: ClassVar = Range(-4.0, 0.0, room=0.5)

    def __init__(self, params: Tensor, box: Box) -> None:
        super().__init__(params, box)
        self._mean = self.MEAN.soft_clamp(self._mean)

    @property
    def mean(self) -> Tensor:
        """Of the normal distribution before the tanh, [..., *shape], where -1 and 1 stand for the bounds."""
        return self._box.to_shape(self._mean)

    @property
    def stddev(self) -> Tensor:
        """Likewise."""
        return self._box.to_shape(self.log_std.exp())

    def log_prob(self, actions: Tensor) -> Tensor:
        before = torch.atanh(_inside(self._box.units(actions)))
        return self._log_density(before) - log_slope(before).sum(-1) - self._box.log_volume

    def entropy(self) -> Tensor:
        """[...], by Gauss-Hermite quadrature: there is no closed form."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        at, weight = (torch.from_numpy(values).to(self._mean) for values in (nodes, weights / math.sqrt(2 * math.pi)))
        before = self._mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * at
        return super().entropy() + (log_slope(before) * weight).sum((-2, -1))

    def _action(self, drawn: Tensor) -> Tensor:
        return self._box.actions(_inside(torch.tanh(drawn)))


def _inside(units: Tensor) -> Tensor:
    """Keep off the bounds, where the inverse of tanh is infinite."""
    return units.clamp(EDGE - 1, 1 - EDGE)


def log_slope(before: Tensor) -> Tensor:
    """log(1 - tanh(x)^2), without cancellation."""
    return 2 * (math.log(2) - before - softplus(-2 * before))
