"""Which row of a ring continues which other row."""

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire import Origin

Ints = NDArray[np.int64]


class Chains:
    """Links between rows of one stream (sender, slot, row in its messages) with consecutive seq, for rows in the ring.

    Args:
      capacity: slots of the ring.
    """

    def __init__(self, capacity: int) -> None:
        self.after: Ints = np.full(capacity, -1)  #: [capacity], slot of the row that continues the one here; -1: none
        self.before: Ints = np.full(capacity, -1)
        self._origins: dict[int, Origin] = {}  #: of the row in each slot
        self._newest: dict[tuple[int, int, int], int] = {}  #: slot of the newest row, by stream

    def _cut(self, slot: int) -> None:
        """Forget the row in this slot."""
        for there, back in ((self.after, self.before), (self.before, self.after)):
            if (other := there[slot]) >= 0:
                there[slot] = back[other] = -1
        if origin := self._origins.pop(slot, None):
            stream = origin.sender, origin.slot, origin.row
            if self._newest.get(stream) == slot:
                del self._newest[stream]

    def add(self, slot: int, origin: Origin) -> int:
        """Record the origin of the row now in this slot. Returns the slot of the row before it in its stream, or -1."""
        self._cut(slot)
        stream = origin.sender, origin.slot, origin.row
        newest = self._newest.get(stream)
        self._origins[slot], self._newest[stream] = origin, slot
        if newest is None or not origin.rows or self._origins[newest].seq + 1 != origin.seq:
            return -1
        return newest

    def join(self, before: int, after: int) -> None:
        """Record that the row in slot `after` continues the row in slot `before`."""
        self.after[before], self.before[after] = after, before

    def walk(self, slots: Ints, back: int, ahead: int) -> Ints:
        """[N, back + 1 + ahead]: slots of the rows around those in `slots` [N], in time order; -1 for none."""
        found = np.full((len(slots), back + 1 + ahead), -1)
        found[:, back] = slots
        for links, step, ends in ((self.before, -1, -1), (self.after, 1, back + 1 + ahead)):
            for at in range(back, ends - step, step):
                here = found[:, at]
                found[:, at + step] = np.where(here >= 0, links[here], -1)
        return found
