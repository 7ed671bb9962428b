"""Draws in proportion to weights that change all the time.

tree = SumTree(1_000_000)
tree.set(ids, weights)
ids = tree.find(tree.stratified(32, rng))
"""

import numpy as np
from numpy.typing import NDArray

FAN_OUT = 16  #: children of a node: a row of numbers that numpy adds up at once
TOP = 4096  #: maximum number of nodes whose running sum is recomputed for each draw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SumTree:
    """Weights of items 0..n-1, initially 0, and sums of ever larger groups of them.

    A sum is always recomputed from its current parts, so that no error grows, however many updates there were.

    Args:
      n: items.
    """

    def __init__(self, n: int) -> None:
        self._levels: list[Floats] = [np.zeros(_round_up(n))]  #: the items, then their sums, then the sums of those
        while len(self._levels[-1]) > TOP:
            self._levels.append(np.zeros(_round_up(len(self._levels[-1]) // FAN_OUT)))

    @property
    def weights(self) -> Floats:
        """[n and a few more], of all items. A view."""
        return self._levels[0]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(np.cumsum(self._levels[-1])[-1])

    def set(self, ids: Ints, weights: Floats | float) -> None:
        """Give items [N] new weights, finite and not negative; for a repeated item the last one counts."""
        nodes = ids
        self._levels[0][nodes] = weights
        for parts, sums in zip(self._levels[:-1], self._levels[1:], strict=True):
            nodes = nodes // FAN_OUT
            sums[nodes] = parts.reshape(-1, FAN_OUT)[nodes].sum(axis=1)

    def draw_strata(self, n: int, rng: np.random.Generator) -> Floats:
        """n points for `find`, one in each of n equal parts of the total (Schaul et al. 2016, appendix B.2.1)."""
        return (np.arange(n) + rng.random(n)) * (self.total / n)

    def find(self, points: Floats) -> Ints:
        """The items at which the running sum of weights passes each of these points [N] in [0, total).

        An item of weight 0 is never among them, whatever rounding does.

        Raises:
          ValueError: all weights are 0.
        """
        top = np.cumsum(self._levels[-1])
        if not top[-1] > 0:
            raise ValueError("there is nothing to draw")
        points = np.minimum(points, np.nextafter(top[-1], 0.0))
        nodes: Ints = np.searchsorted(top, points, "right")  # the first whose sum is larger, so its weight is not 0
        before = np.where(nodes > 0, top[nodes - 1], 0.0)
        rows = np.arange(len(points))
        for level in reversed(self._levels[:-1]):
            sums = np.cumsum(level.reshape(-1, FAN_OUT)[nodes], axis=1)
            points = np.clip(points - before, 0.0, np.nextafter(sums[:, -1], 0.0))
            child = (sums > points[:, None]).argmax(axis=1)
            before = np.where(child > 0, sums[rows, child - 1], 0.0)
            nodes = nodes * FAN_OUT + child
        return nodes


def _round_up(n: int) -> int:
    return -(-n // FAN_OUT) * FAN_OUT
