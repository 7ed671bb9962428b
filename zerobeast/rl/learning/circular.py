"""Learning from each batch more than once.

circular = Circular(batches=4, uses=2, device=net.device)
for one in circular.add(batch):     # this batch, and the one that came two before it
    ...
"""

from collections import deque
from typing import Any

import torch

from zerobeast.rl.data import Batch


class Circular:
    """The last N batches, each used K times: once on arrival, then at even intervals until N later ones have arrived.
    So once N batches have arrived, each arrival triggers K uses of old and new batches; before that, fewer.

    Luo et al. 2020 (IMPACT), section 3.2, draws the next batch at random, at the learner's own pace, and drops batches
    that actors replace too soon. Here actors wait for the learner, and nothing is random or dropped.
    With N = 1 all uses follow one another; with K = 1 as well, batches pass through as through a queue.

    Args:
      batches: N.
      uses: K.
      device: of batches that are restored from a checkpoint.
    """

    def __init__(self, batches: int, uses: int, device: torch.device) -> None:
        self._device = device
        self._ages = [use * batches // uses for use in range(uses)]  #: when a batch is used, in arrivals since its own
        self.held: deque[Batch] = deque(maxlen=self._ages[-1] + 1)  #: newest first

    def add(self, batch: Batch) -> list[Batch]:
        """Hold a batch, replacing the oldest if there is no room. Returns the batches to learn from now, oldest first.

        A batch that is to be used several times now is listed as often.
        """
        self.held.appendleft(batch)
        return [self.held[age] for age in reversed(self._ages) if age < len(self.held)]

    def state(self) -> list[dict[str, Any]]:
        """The batches that will be used again, newest first: without them, a restart would lead to other steps."""
        return [batch._asdict() for age, batch in enumerate(self.held) if age < self._ages[-1]]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Hold these batches, as if nothing had been added since."""
        self.held.clear()
        self.held.extendleft(Batch.restore(entries, self._device) for entries in reversed(state))
