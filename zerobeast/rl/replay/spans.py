"""Items of a replay: spans that run from a stored step to the end of its episode, for at most m steps.

`Spans` keeps track of them for either kind: which spans are complete, and how long each is. No span begins at a void
step, and a span ends at the last observation of its episode, whether that terminated, was truncated or was cut short.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire import Origin
from zerobeast.rl.replay.row_fields import RowFields

Ints = NDArray[np.int64]
S = TypeVar("S", bound=tuple[Any, ...])  #: what a sample of items is
AT_ONCE = 4096  #: rows that are examined together


class Chains:
    """Which row of a ring continues which other row.

    Those of one stream (sender, slot, row in its messages) with consecutive seq are linked, while they are in the ring,
    unless steps are missing between them: the sender began anew, or dropped rollouts.

    Args:
      capacity: slots of the ring.
      continues: whether the row in a slot, the second, goes on where the one in another slot ends.
    """

    def __init__(self, capacity: int, continues: Callable[[int, int], bool]) -> None:
        self._continues = continues
        self.after: Ints = np.full(capacity, -1)  #: [capacity], slot of the row that continues the one here; -1: none
        self.before: Ints = np.full(capacity, -1)
        self._origins: dict[int, Origin] = {}  #: of the row in each slot
        self._newest: dict[tuple[int, int, int], int] = {}  #: slot of the newest row, by stream

    def _cut(self, slot: int) -> None:
        """Remove the row in this slot."""
        for there, back in ((self.after, self.before), (self.before, self.after)):
            if (other := there[slot]) >= 0:
                there[slot] = back[other] = -1
        if origin := self._origins.pop(slot, None):
            stream = origin.sender, origin.slot, origin.row
            if self._newest.get(stream) == slot:
                del self._newest[stream]

    def add(self, slot: int, origin: Origin) -> None:
        """Record the origin of the row now in this slot, and link it with the one before it."""
        self._cut(slot)
        stream = origin.sender, origin.slot, origin.row
        newest = self._newest.get(stream)
        self._origins[slot], self._newest[stream] = origin, slot
        if newest is None or not origin.rows or self._origins[newest].seq + 1 != origin.seq:
            return
        if self._continues(newest, slot):
            self.after[newest], self.before[slot] = slot, newest

    def walk(self, slots: Ints, back: int, ahead: int) -> Ints:
        """[N, back + 1 + ahead]: slots of the rows around those in `slots` [N], in time order; -1 for none."""
        found = np.full((len(slots), back + 1 + ahead), -1)
        found[:, back] = slots
        for links, step, ends in ((self.before, -1, -1), (self.after, 1, back + 1 + ahead)):
            for at in range(back, ends - step, step):
                here = found[:, at]
                found[:, at + step] = np.where(here >= 0, links[here], -1)
        return found


class Spans(ABC, Generic[S]):
    """The spans over the rows of a ring. The id of a span is slot * T + t of its first step.

    Args:
      fields: of the rows.
      chains: which row continues which.
      reach: maximum steps of a span.
      back: rows before its own that a span needs if it does not open an episode; it must then begin at step 0 of its
        row. -1: a span may begin at any step, and needs none.
      answered: whether a span needs the policy's answer to its last observation.
    """

    def __init__(
        self, fields: RowFields, chains: Chains, reach: int, *, back: int = -1, answered: bool = False
    ) -> None:
        self.fields, self.chains = fields, chains
        self._reach, self._back, self._answered = reach, back, answered
        #: maximum rows after its own that a span reaches into
        self._ahead = -(-(fields.steps - 1 + reach + answered) // fields.steps) - 1
        self.lengths: NDArray[np.int32] = np.zeros(fields.capacity * fields.steps, np.int32)  #: by id; 0: no such span
        self.count = 0  #: of complete spans

    @abstractmethod
    def sample(self, ids: Ints, *, obs: bool = True) -> S:
        """These spans; without `obs`, an empty tensor stands for observations."""

    def complete(self, slots: Ints) -> Ints:
        """Ids of the spans that the rows in `slots`, new and already joined, have completed."""
        parts = [self._complete(slots[at : at + AT_ONCE]) for at in range(0, len(slots), AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def lose(self, slots: Ints) -> Ints:
        """Ids of the spans that are lost when the rows in `slots`, the oldest ones, are overwritten."""
        steps = self.fields.steps
        ids = slots[:, None] * steps + np.arange(steps)
        later = self.chains.walk(slots, 0, max(self._back, 0))[:, 1:]
        later = later[later >= 0]
        later = later[~self.fields.values("first", later)[:, 0]]
        lost: Ints = np.unique(np.concatenate([ids.ravel(), later * steps]))
        lost = lost[self.lengths[lost] > 0]
        self.lengths[lost] = 0
        self.count -= len(lost)
        return lost

    def locate(self, slots: Ints, offsets: Ints, back: int = 0) -> tuple[Ints, Ints]:
        """Slots and t of the steps `offsets` [N, M] after step 0 of rows [N], or before it if negative.

        The step after a row is step 0 of the next row, or step T of its own as long as there is no next row.
        """
        steps = self.fields.steps
        around = self.chains.walk(slots, back, self._ahead + 1)
        rows, ts = np.divmod(offsets, steps)
        found = np.take_along_axis(around, rows + back, axis=1)
        if (missing := found < 0).any():
            found[missing] = np.take_along_axis(around, rows + back - missing, axis=1)[missing]
            ts[missing] = steps
        return found, ts

    def _complete(self, slots: Ints) -> Ints:
        steps = self.fields.steps
        earlier = np.unique(self.chains.walk(slots, self._ahead, 0))
        starts = earlier[earlier >= 0]
        around = self.chains.walk(starts, 0, self._ahead)
        known = np.repeat(around >= 0, steps, axis=1)
        void, ends = (self._of(names, around) & known for names in (("first",), ("terminated", "truncated")))
        lengths = self._lengths(known, void, ends)[:, :steps]
        lengths[void[:, :steps] | ~self._may_start(starts)] = 0
        ids = starts[:, None] * steps + np.arange(steps)
        new = (lengths > 0) & (self.lengths[ids] == 0)
        found: Ints = ids[new]
        self.lengths[found] = lengths[new]
        self.count += len(found)
        return found

    def _lengths(self, known: NDArray[np.bool_], void: NDArray[np.bool_], ends: NDArray[np.bool_]) -> Ints:
        """[N, M]: length of the span from each step, 0 if not known yet. All arrays are by transition."""
        n, m = known.shape
        stops = np.zeros((n, m + 1), np.bool_)  # by step: no span goes on past it
        stops[:, 1:] = ends
        stops[:, :-1] |= void
        at = np.where(stops, np.arange(m + 1), m + self._reach)
        stop = np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1][:, 1:]  # the first one after each step
        lengths = np.minimum(stop - np.arange(m), self._reach)
        last = np.arange(m) + lengths - 1 + self._answered
        reached = np.take_along_axis(known, np.minimum(last, m - 1), axis=1) & (last < m)
        return np.where(reached, lengths, 0)

    def _may_start(self, starts: Ints) -> NDArray[np.bool_]:
        """[N, T]: whether `back` lets a span begin at each step."""
        may = np.ones((len(starts), self.fields.steps), np.bool_)
        if self._back >= 0:
            may = self.fields.values("first", starts)[:, :-1]
            may[:, 0] |= (self.chains.walk(starts, self._back, 0) >= 0).all(axis=1)
        return may

    def _of(self, names: Iterable[str], around: Ints) -> NDArray[np.bool_]:
        """[N, M]: whether any of these fields is set after each transition of rows [N, M / T]."""
        rows = np.maximum(around, 0).ravel()
        found = [self.fields.values(name, rows)[:, 1:] for name in names]
        either: NDArray[np.bool_] = np.logical_or.reduce(found).reshape(len(around), -1)
        return either
