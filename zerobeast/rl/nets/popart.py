"""A value head that learns in units of the deviation of its targets, and outputs values in units of rewards.

PopArt: van Hasselt et al. 2016, "Learning values across many orders of magnitude", arXiv:1602.07714; several tasks:
Hessel et al. 2018, arXiv:1809.04474.

    value = head(x)                                     # [..., K], always in units of rewards
    loss = ((value - target) / head.scale).square()     # its gradient is that of learning in units of the deviation
    head.observe(targets, tasks)                        # between two steps of the optimiser; changes no value
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from zerobeast.rl.ops import ranks

STEP_SIZE = 1e-4  #: of the statistics, per target (Song et al. 2019, section 5)
MIN_SCALE, MAX_SCALE = 1e-2, 1e6  #: from the same section


class PopArt(nn.Module):
    """One value per task; the statistics are part of the weights and travel with them.

    Args:
      head: a layer with one output, or with one per task, whose parameters are the initial ones.
      tasks: how often to repeat the outputs of `head`; 1 if it has one per task already.
    """

    mean: Tensor  #: [K] of the targets of each task
    scale: Tensor  #: [K] standard deviation of the targets of each task

    def __init__(self, head: nn.Linear | PopArt, tasks: int = 1) -> None:
        super().__init__()
        weight, bias, outputs = head.weight.detach(), head.bias.detach(), tasks * len(head.bias)
        # with other calls a network on the meta device would load the compiler, which takes a second
        self.weight: Tensor = nn.Parameter(weight.expand(outputs, -1).clone())
        self.bias: Tensor = nn.Parameter(bias.expand(outputs).clone())
        self.register_buffer("mean", bias.new_zeros(outputs))
        self.register_buffer("scale", bias.new_ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., K], in units of rewards."""
        return self.mean + self.scale * linear(x, self.weight, self.bias)

    @torch.no_grad()
    def observe(self, targets: Tensor, tasks: Tensor | None = None) -> None:
        """Move the statistics towards those of all ranks' `targets`, and adapt the layer so that no value changes.

        Args:
          targets: [N] in units of rewards.
          tasks: [N] int64, the task of each target; None: all are of the first task.
        """
        tasks = torch.zeros_like(targets, dtype=torch.int64) if tasks is None else tasks
        own = one_hot(tasks, len(self.mean)).to(targets)
        counts = own.sum(0)
        mean = targets @ own / counts.clamp(min=1)
        variance = ((targets.unsqueeze(-1) - mean).square() * own).sum(0) / counts.clamp(min=1)
        counts, mean, variance = ranks.merge_moments(counts, mean, variance, "targets")
        share = 1 - (1 - STEP_SIZE) ** counts  # as for `counts` targets one after another; 0 for none
        # combines the moments of two groups: a difference of second moments would cancel if the mean is large
        delta = mean - self.mean
        variance = self.scale.square() + share * (variance - self.scale.square()) + share * (1 - share) * delta.square()
        mean, scale = self.mean + share * delta, variance.sqrt().clamp(MIN_SCALE, MAX_SCALE)
        # scale * (w x + b) + mean stays as it was; if a task's statistics stay the same, not a bit changes: a task that
        # is away for long loses nothing to rounding
        ratio = self.scale / scale
        self.weight *= ratio.unsqueeze(-1)
        self.bias.copy_(ratio * self.bias + (self.mean - mean) / scale)
        self.mean.copy_(mean)
        self.scale.copy_(scale)
