"""Old rollouts in every batch: the experience replay of Espeholt et al. 2018, section 5.2.2."""

from collections import deque
from typing import Any

import torch

from zerobeast.rl.data import Batch


class OldRollouts:
    """The newest rollouts, first in, first out; each batch is extended by some earlier ones.

    They are drawn uniformly with replacement and stay in the replay. V-trace corrects for their age. With a share of 0,
    batches pass through unchanged and nothing is held. Batches are packed, each frame once.

    What rounding takes from a batch is added to later ones, so the share holds on average, however small it is.

    Args:
      share: of a batch's rows that are old, below 1: n new rows are joined by n share / (1 - share) old ones.
      rollouts: maximum number held.
      seed: of the draws.
    """

    def __init__(self, share: float, rollouts: int, seed: int) -> None:
        self._per_new = share / (1 - share)
        self._owed = 0.0  #: old rows that rounding left out so far; below 0: that it added
        self._held: deque[Batch] = deque(maxlen=rollouts)  #: of one row each, oldest first
        self._generator = torch.Generator().manual_seed(seed)

    def mix(self, batch: Batch) -> Batch:
        """The batch, followed by old rows; its own rows are held from now on. The first batch is returned alone."""
        if not self._per_new:
            return batch
        wanted = batch.mask.shape[1] * self._per_new + self._owed
        old = round(wanted)
        self._owed = wanted - old
        if self._held and len(self._held[0].mask) != len(batch.mask):
            self._held.clear()  # they were collected with another unroll_length, before this run was resumed
        mixed = Batch.joined([batch, *self._drawn(old)])
        self._hold(batch)
        return mixed

    def state(self) -> dict[str, Any]:
        """All held rollouts, and what the next draws depend on."""
        held = [Batch.joined(self._held)._asdict()] if self._held else []
        return {"held": held, "generator": self._generator.get_state(), "owed": self._owed}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from `state`, with only its newest rollouts if there is less room, and none if the share is 0."""
        self._generator.set_state(state["generator"].cpu())
        self._held.clear()
        if not self._per_new:
            return
        self._owed = state["owed"]
        for entries in state["held"]:
            self._hold(Batch.restored(entries, device))

    def _hold(self, batch: Batch) -> None:
        rows = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        self._held.extend(batch.pick(row) for row in rows.view(-1, 1))

    def _drawn(self, count: int) -> list[Batch]:
        if not self._held:
            return []
        picks = torch.randint(len(self._held), (count,), generator=self._generator)
        return [self._held[pick] for pick in picks.tolist()]
