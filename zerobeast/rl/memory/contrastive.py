"""The auxiliary loss: two views of an observation should look alike to the encoder, and unlike all others.

NT-Xent (Chen et al. 2020, equation 1) of each observation and a copy of it with noise and a random cutout. The moving
average of an entry's losses over several epochs is its momentum loss (Zhou et al. 2022, "Contrastive Learning with
Boosted Memorization", section 3.2).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, nest_values
from zerobeast.rl.learning import GradientDescent
from zerobeast.rl.learning.parts import Parts
from zerobeast.rl.nets.body import Body
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.settings import LearnerSettings

MINIBATCH = 128  #: observations at once, at most
PROJECTION_WIDTH = 64  #: width of what the loss compares
NOISE = 0.1  #: deviation of the noise, in that of the values of a minibatch
CUTOUT_SIDE = 0.5  #: side of the cutout, in that of the image
DROPOUT_SHARE = 0.2  #: of what is no image, the share of numbers that are set to 0


class Contrastive(Parts):
    """Trains the encoder, the first torso of a body, by an optimiser of its own.

    Args:
      config: of the run.
      env: its observations.
      body: of the network that is trained.
      device: where that is.
    """

    def __init__(self, config: RunConfig, env: EnvSpec, body: Body, device: torch.device) -> None:
        self._space, self._body, self._settings, self._device = env.obs, body, config.memory, device
        encoder = body.torsos[0]
        width: int = encoder.out_size  # type: ignore[assignment]  # it is a `Torso`
        self._head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION_WIDTH)).to(device)
        pace = LearnerSettings(
            learning_rate=config.memory.contrastive_rate, schedule="constant", epsilon=1e-8, max_grad_norm=40.0
        )
        trained = [*encoder.parameters(), *self._head.parameters()]
        self._descent = GradientDescent(config, pace, trained, "memory.contrastive_rate")
        self.parts = {"head": self._head, "optimizer": self._descent}

    def epoch(self, obs: Any, n: int, keys: Tensor | None = None) -> Tensor:
        """Take a step on each minibatch. They are of one size, because the loss grows with the number of negatives.

        Args:
          obs: n observations [n, (k,) *frame], or a tree of such.
          n: how many.
          keys: [n, K], of length 1, if observations whose keys are alike are to be no negatives of each other.

        Returns:
          [n] the loss of each, before the step on it.
        """
        losses = torch.zeros(n, device=self._device)
        for part in torch.tensor_split(torch.randperm(n, device=self._device), math.ceil(n / MINIBATCH)):
            drawn = tree_map(lambda entries, part=part: entries[part][None], obs)  # one step of so many environments
            alike = None if keys is None else keys[part] @ keys[part].T >= self._settings.negatives_below
            with self._descent.autocast():
                ours, theirs = (self._head(self._body.embed(each))[0] for each in (drawn, self._view(drawn)))
            found = nt_xent(ours.float(), theirs.float(), self._settings.contrastive_temperature, alike)
            self._descent.step(found.mean(), 0)
            losses[part] = found.detach()
        return losses

    def _view(self, obs: Any) -> Any:
        pairs = zip(leaves(obs), self._space.arrays, strict=True)
        return nest_values(self._space, (augment(entries, space) for entries, space in pairs))


def nt_xent(ours: Tensor, theirs: Tensor, temperature: float, alike: Tensor | None = None) -> Tensor:
    """The loss of each pair of views, the mean over its two directions.

    Args:
      ours: [n, P], one view of each.
      theirs: [n, P], the other.
      temperature: tau.
      alike: [n, n] bool, True for two that are no negatives of each other; None: all others are negatives.

    Returns:
      [n].
    """
    n = len(ours)
    both = normalize(torch.cat([ours, theirs]), dim=-1)
    left_out = torch.eye(2 * n, dtype=torch.bool, device=both.device)
    if alike is not None:
        left_out |= alike.clone().fill_diagonal_(fill_value=False).repeat(2, 2)
    likeness = (both @ both.T / temperature).masked_fill(left_out, -torch.inf)
    positives = torch.arange(2 * n, device=both.device).roll(n)
    return cross_entropy(likeness, positives, reduction="none").view(2, n).mean(0)


def augment(array: Tensor, space: ArraySpace) -> Tensor:
    """[1, n, (k,) *frame] with Gaussian noise, as float32, and a part set to 0.

    Whole numbers that are no image get no noise, and choices stay as they are.
    """
    if space.kind != "box":
        return array
    if space.image_size is None and not array.is_floating_point():
        return array.masked_fill(torch.rand(array.shape, device=array.device) < DROPOUT_SHARE, 0)
    noisy = array.float()
    noisy = noisy + NOISE * noisy.std() * torch.randn_like(noisy)
    if space.image_size is None:
        return noisy.masked_fill(torch.rand_like(noisy) < DROPOUT_SHARE, 0.0)
    axes = (-2, -1) if space.channels_first else (-3, -2)
    inside = torch.ones(1, dtype=torch.bool, device=array.device)
    for axis in axes:
        side = array.shape[axis]
        first = torch.rand(array.shape[1], 1, device=array.device) * (side * (1 - CUTOUT_SIDE))
        place = torch.arange(side, device=array.device) + 0.5
        shape = [1, array.shape[1], *[1] * (array.ndim - 2)]
        shape[axis] = side
        inside = inside & ((place >= first) & (place < first + side * CUTOUT_SIDE)).view(shape)
    return noisy.masked_fill(inside, 0.0)
