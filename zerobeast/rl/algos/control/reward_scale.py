"""Rewards in units of the deviation of returns, so that critics over a fixed range of returns suit any environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerobeast.rl.data import Batch
from zerobeast.rl.learning import shape_rewards
from zerobeast.rl.nets.normalize import MIN_VARIANCE, Moments
from zerobeast.rl.ops import ranks
from zerobeast.rl.settings import LearnerSettings

LIMIT = 5.0  #: the largest return so far is at most this, as in SimbaV2 (Lee et al. 2025, arXiv:2502.15280)
MAX_STREAMS = 65_536  #: environments whose return so far is kept; more come only from senders that have ended


class RewardScale(Moments):
    """Running deviation and largest magnitude of returns; the same on all ranks."""

    largest: Tensor  #: [] float32

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    @torch.no_grad()
    def join(self, returns: EpisodeReturns) -> None:
        """Add the returns that all ranks have collected, which then have none again."""
        count, mean, variance, largest = returns.take(self.mean.device)
        count, mean, variance = ranks.merge_moments(count, mean, variance, "statistics of returns")
        if count > 0:
            self.merge(count, mean, variance)
            self.largest.copy_(torch.maximum(self.largest, ranks.gather(largest, "largest return").amax()))

    def forward(self, rewards: Tensor) -> Tensor:
        """Rewards of any shape -> the same, scaled."""
        deviation = self.variance.clamp(min=MIN_VARIANCE).sqrt()
        return rewards / torch.maximum(deviation, self.largest / LIMIT)


class EpisodeReturns:
    """G_t = gamma G_{t-1} + r_t in each environment of this rank, as gymnasium's NormalizeReward has it.

    Args:
      discount: gamma.
    """

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._now: dict[tuple[int, ...], float] = {}  #: G of each environment that plays an episode
        self._new: list[float] = []  #: those that have not been taken yet

    def observe(self, batch: Batch, settings: LearnerSettings) -> None:
        """Add the rewards of rollouts [T, B], in the order in which their environments have played them."""
        rewards = shape_rewards(batch.reward[1:], settings)
        rewards = rewards.nan_to_num(0.0, 0.0, 0.0)  # one that is not finite would stay for good
        entries = (each.transpose(0, 1).tolist() for each in (rewards, batch.first[:-1], batch.mask))
        for (sender, slot, _, row, _), *steps in zip(batch.origin.tolist(), *entries, strict=True):
            now = self._now.pop((sender, slot, row), 0.0)
            for reward, first, valid in zip(*steps, strict=True):
                if valid:
                    now = reward if first else self._discount * now + reward
                    self._new.append(now)
            self._now[sender, slot, row] = now
        for stream in list(self._now)[: max(0, len(self._now) - MAX_STREAMS)]:
            del self._now[stream]

    def take(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Number, mean, variance and largest magnitude of the returns since the last time, [] each."""
        new = torch.tensor(self._new or [0.0], device=device)
        count = torch.tensor(float(len(self._new)), device=device)
        self._new = []
        return count, new.mean(), new.var(correction=0), new.abs().amax()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"now": self._now, "new": self._new}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._now, self._new = dict(state["now"]), list(state["new"])
