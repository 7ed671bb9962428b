"""A replay: rows in a file, items over them, and draws by priority.

    replay = Replay(config.store, record, env, items, settings, seed=1, device=device)
    replay.insert(rollouts)                 # stored when this returns
    drawn = replay.draw(32, beta=0.4)
    replay.update(drawn.ids, priorities)

Proportional prioritisation as of Schaul et al. 2016, section 3.3: P(i) = p_i^alpha / sum p^alpha.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.errors import StoreError
from zerobeast.common.wire import EnvSpec, Origin, RecordSpec
from zerobeast.rl.data import Rollouts
from zerobeast.rl.ops import ranks
from zerobeast.rl.replay.items import Items
from zerobeast.rl.replay.ring_file import RingFile
from zerobeast.rl.replay.row_fields import RowFields
from zerobeast.rl.replay.spans import Chains, S
from zerobeast.rl.replay.sum_tree import SumTree
from zerobeast.rl.replay_settings import ReplaySettings

log = logging.getLogger(__name__)

MIN_PRIORITY = 1e-6  #: so that every item is drawn again some time: epsilon of Schaul et al. 2016, section 3.3

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class ReplaySample(NamedTuple, Generic[S]):
    """A sample of a replay."""

    batch: S
    ids: Ints  #: [N] of the items drawn, for `Replay.update`
    #: [N] float32, importance weights (N_items P(i))^-beta divided by the largest of all ranks (Schaul et al. 2016,
    #: section 3.4); 1 if all items have equal chances
    weights: Tensor


class Replay(Generic[S]):
    """See the module. Items are numbered by the step they begin at; one is gone when any of its rows is overwritten.

    Args:
      store: folder of the file.
      record: of a row.
      env: what the rows hold.
      items: kind of items to draw.
      settings: size, compression and alpha.
      seed: of all draws.
      device: of the tensors drawn.
      first_priorities: priorities [N] of new items, from a sample of them without observations; None: the largest so
        far, initially 1.

    Raises:
      StoreError: the file cannot be made, or does not hold these rows.
      ConfigError: such observations cannot be compressed.
      ValueError: the items do not fit T.
    """

    def __init__(
        self,
        store: Path,
        record: RecordSpec,
        env: EnvSpec,
        items: Items[S],
        settings: ReplaySettings,
        seed: int,
        device: torch.device,
        first_priorities: Callable[[S], Tensor] | None = None,
    ) -> None:
        steps = record.dtype["first"].shape[0] - 1
        self._ring = ring = RingFile(store, record, env, -(-settings.replay_size // steps), settings.replay_compression)
        ring.drop_impossible(env)
        self._fields = RowFields(ring.rows, ring.frames, env, device)
        self._items, self._alpha = items, settings.priority_exponent
        self._least, self._drawn = settings.batch_size, False
        self._first_priorities = first_priorities if self._alpha else None
        self._rng = np.random.default_rng(seed)
        self._priorities = ring.priorities.reshape(-1)  #: by id, not raised to alpha; a view of the file
        self._largest = 1.0
        self._known = 0  #: insert number of the newest row that the checkpoint counts
        self._begun = 0  #: insert number after which the ring was filled, above 0 if its file was lost
        self._index_rows()

    @property
    def size(self) -> int:
        """Items that can be drawn."""
        return self._index.count

    def insert(self, rollouts: Rollouts) -> None:
        """Store rows. When this returns, they outlive the process.

        Raises:
          StoreError: the disk is full, or the replay is full with fewer items than a draw takes.
        """
        rows, count = rollouts.rows, len(rollouts.rows)
        origins = np.zeros((count, len(Origin._fields)), np.int64) if rollouts.origins is None else rollouts.origins
        tasks = np.zeros(count, np.int64) if rollouts.tasks is None else rollouts.tasks
        content = np.ascontiguousarray(rows).view(np.uint8).reshape(count, -1)
        at = 0
        while at < count:
            slots = self._ring.next(count - at)
            self._tree.set(self._index.lose(slots), 0.0)
            for row in range(at, at := at + len(slots)):
                origin = Origin._make(origins[row].tolist())
                self._chains.add(self._ring.write(content[row], origin, int(tasks[row])), origin)
            new = self._index.complete(slots)
            self._assign(new, np.full(len(new), self._largest))
            if self._first_priorities is not None and len(new):
                self.update(new, self._first_priorities(self._index.sample(new, obs=False)))
        if self._ring.number - self._begun >= self._ring.capacity and self.size < self._least and not self._drawn:
            drawn = f"{self.size} items of it can be drawn: expected {self._least} (batch_size): raise replay_size"
            full = f"the replay is full with {self._ring.capacity} rollouts of all environments together"
            raise StoreError(f"{full}, and {drawn}")

    def draw(self, n: int, beta: float) -> ReplaySample[S]:
        """Draw n items, with replacement, by priority.

        Args:
          n: number of items.
          beta: of the importance weights, 0 to 1.

        Raises:
          ValueError: there are no items.
        """
        self._drawn = True
        ids = self._tree.find(self._tree.draw_strata(n, self._rng))
        chances = self._tree.weights[ids]
        least = chances.min()
        if self._alpha and ranks.size() > 1:  # as many items are drawn from each rank's total
            chances = chances / self._tree.total
            least = ranks.gather(torch.tensor(chances.min()), "largest weight").min().item()
        weights = (chances / least) ** -beta  # N and the total cancel out
        batch = self._index.sample(ids)
        return ReplaySample(batch, ids, self._fields.tensor(weights.astype(np.float32)))

    def update(self, ids: Ints, priorities: Tensor) -> None:
        """Give drawn items [N] new priorities [N]. Those not finite, or of items that are gone, are ignored."""
        values = priorities.detach().cpu().double().numpy()
        good = np.isfinite(values) & (self._index.lengths[ids] > 0)
        self._assign(ids[good], np.maximum(values[good], MIN_PRIORITY))

    def recover_rows(self) -> Sequence[Origin]:
        """Origins of the rows that the file has and the checkpoint does not count, in order of insertion."""
        rows = self._ring.origins(self._ring.after(self._known))
        return [origin for origin in rows if origin.rows]

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold; the rows are in the file."""
        return {"inserted": self._ring.number, "largest": self._largest, "random": self._rng.bit_generator.state}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        Raises:
          KeyError, TypeError, ValueError: it did not come from `state`.
        """
        self._known, largest = int(state["inserted"]), float(state["largest"])
        if not (0 <= self._known < 1 << 62 and 0 < largest < np.inf):
            raise ValueError(f"impossible numbers of a replay: {self._known} rows inserted, largest priority {largest}")
        self._largest = max(self._largest, largest)
        self._rng.bit_generator.state = state["random"]
        if (there := self._ring.number) < self._known:
            lost = self._known - there
            log.warning("%s has lost the newest %d rollouts that the checkpoint counts", self._ring.path, lost)
            self._ring.skip_to(self._known)
            self._begun = self._known
            self._index_rows()

    def _index_rows(self) -> None:
        """Find the items of all rows in the file."""
        ring = self._ring
        self._chains = Chains(ring.capacity, self._fields.continues)
        self._index = self._items(self._fields, self._chains)
        self._tree = SumTree(ring.capacity * ring.steps)
        slots = ring.after(0)
        for slot, origin in zip(slots.tolist(), ring.origins(slots), strict=True):
            self._chains.add(slot, origin)
        ids = self._index.complete(slots)
        priorities = self._priorities[ids]
        known = np.isfinite(priorities) & (priorities > 0)
        self._largest = max(self._largest, float(priorities[known].max(initial=0.0)))
        self._assign(ids, np.where(known, priorities, self._largest).astype(np.float64))

    def _assign(self, ids: Ints, priorities: Floats) -> None:
        if len(ids):
            self._priorities[ids] = priorities
            self._largest = max(self._largest, float(priorities.max()))
            self._tree.set(ids, self._priorities[ids].astype(np.float64) ** self._alpha)
