"""Rewards in units of the deviation of returns, so that critics over a fixed range of returns suit any environment."""

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
    """Running deviation and largest magnitude of G_t = gamma G_{t-1} + r_t in each environment.

    Args:
      discount: gamma.
    """

    largest: Tensor  #: [] float32, the largest |G| so far

    def __init__(self, discount: float) -> None:
        super().__init__()
        self._discount = discount
        self.register_buffer("largest", torch.zeros(()))
        self.unmerged = Moments()  #: of this rank since `join`
        self.unmerged.alone = True
        self._returns: dict[tuple[int, ...], float] = {}  #: G of each environment that plays an episode

    @torch.no_grad()
    def observe(self, batch: Batch, settings: LearnerSettings) -> None:
        """Add the rewards of rollouts [T, B], in the order in which they were played."""
        streams = [(sender, slot, row) for sender, slot, _, row, _ in batch.origin.tolist()]
        rewards = shape_rewards(batch.reward[1:], settings).masked_fill(batch.first[1:], 0.0)  # without void ones
        rewards.nan_to_num_(0.0, 0.0, 0.0)  # one that is not finite would stay for good
        returns = torch.tensor([self._returns.pop(stream, 0.0) for stream in streams], device=rewards.device)
        seen = []
        for reward, first in zip(rewards, batch.first[:-1], strict=True):
            returns = torch.where(first, 0.0, self._discount * returns) + reward
            seen.append(returns)
        self._returns |= dict(zip(streams, returns.tolist(), strict=True))
        for stream in list(self._returns)[: max(0, len(self._returns) - MAX_STREAMS)]:
            del self._returns[stream]
        entries = torch.stack(seen)[batch.mask]
        if len(entries):
            self.unmerged.add(entries)
            self.largest.copy_(torch.maximum(self.largest, entries.abs().amax()))

    @torch.no_grad()
    def join(self) -> None:
        """Add what all ranks have observed since the last time."""
        own = self.unmerged
        if ranks.size() > 1:
            self.largest.copy_(ranks.gather(self.largest, "largest return").amax())
        merged = ranks.merge_moments(own.count, own.mean, own.variance, "statistics of returns")
        if merged[0] > 0:
            self.merge(*merged)
        own.count.zero_()

    def forward(self, rewards: Tensor) -> Tensor:
        """Rewards of any shape -> the same, scaled."""
        deviation = self.variance.clamp(min=MIN_VARIANCE).sqrt()
        return rewards / torch.maximum(deviation, self.largest / LIMIT)

    def get_extra_state(self) -> Any:
        """The returns so far, for a checkpoint."""
        return self._returns

    def set_extra_state(self, state: Any) -> None:
        """Continue from them."""
        self._returns = dict(state)
