"""Learning from each batch more than once.

circular = Circular(batches=4, uses=2)
for one in circular.add(batch):     # this batch, and the one that came two before it
    ...
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

B = TypeVar("B")


class Circular(Generic[B]):
    """The last N batches, each of which is used K times: once on arrival, then at even distances until N later ones
    have come. So every arrival is worth K uses, of old and new batches alike, once N have come, and fewer before.

    Luo et al. 2020 (IMPACT), section 3.2, draws at random what is used next, at the learner's own pace, and drops
    batches that actors replace too soon. Here actors wait for the learner, and nothing is left to chance or dropped.
    With N = 1 all uses follow one another; with K = 1 as well, batches pass through as through a queue.

    Args:
      batches: N.
      uses: K.
    """

    def __init__(self, batches: int, uses: int) -> None:
        self._ages = [use * batches // uses for use in range(uses)]  #: arrivals since its own at which a batch is used
        self.held: deque[B] = deque(maxlen=self._ages[-1] + 1)  #: newest first

    def add(self, batch: B) -> list[B]:
        """Hold a batch, in the place of the oldest if there is no room. Returns what to learn from now, oldest first.

        A batch is there several times if it is to be used several times now.
        """
        self.held.appendleft(batch)
        return [self.held[age] for age in reversed(self._ages) if age < len(self.held)]

    @property
    def unfinished(self) -> list[B]:
        """The batches that will be used again, newest first: what a checkpoint has to hold, for `load`."""
        return [batch for age, batch in enumerate(self.held) if age < self._ages[-1]]

    def load(self, unfinished: list[B]) -> None:
        """Hold these, as if nothing had been added since."""
        self.held.clear()
        self.held.extendleft(reversed(unfinished))
