"""Samples per insert: how many samples are learned from for each agent step inserted into a replay.

    pace = Pace(ratio=4.0, min_size=1000)
    due = pace.may_sample(batch_size)       # what `Learning.due` returns
    pace.insert(steps); pace.sample(steps)  # what was done

The learner inserts only when it may not sample, so with r rows per insert and s per sample

    0 <= (inserted - min_size) * ratio - sampled < s + r * ratio

once `min_size` rows were inserted: the ratio is bounded on both sides, as with Reverb's SampleToInsertRatio (Cassirer
et al. 2021, "Reverb: A Framework for Experience Replay"), and neither side can wait for the other forever. A run that
continues with another ratio uses it from that point on. Pure.
"""

from typing import Any


class Pace:
    """Counts inserts and samples, over all starts of the learner.

    Args:
      ratio: samples per insert; a row that is learned from twice counts as two samples.
      min_size: inserts before the first sample. At most the capacity of the replay.

    Raises:
      ValueError: with such a number nothing would ever be learned.
    """

    def __init__(self, ratio: float, min_size: int) -> None:
        if ratio <= 0 or min_size < 1:
            raise ValueError(f"ratio {ratio:g} and min_size {min_size}: expected more than 0, and at least 1")
        self._ratio, self._min_size = ratio, min_size
        self.inserted = 0
        self.sampled = 0
        self._start, self._offset = min_size, 0.0  #: inserts at which the ratio took effect, samples allowed by then

    @property
    def filled(self) -> bool:
        """Whether enough was inserted to begin sampling. If sampling is still not allowed, it is ahead of inserting."""
        return self.inserted >= self._min_size

    @property
    def fill(self) -> float:
        """Share of `min_size` that was inserted, at most 1."""
        return min(1.0, self.inserted / self._min_size)

    def may_sample(self, rows: int) -> bool:
        """Whether this many rows may be learned from now."""
        return self.filled and (self.inserted - self._start) * self._ratio + self._offset - self.sampled >= rows

    def insert(self, rows: int) -> None:
        """Count rows that were inserted."""
        self.inserted += rows

    def sample(self, rows: int) -> None:
        """Count rows that were learned from."""
        self.sampled += rows

    def state(self) -> dict[str, Any]:
        """State for a checkpoint."""
        now = {"ratio": self._ratio, "start": self._start, "offset": self._offset}
        return {"inserted": self.inserted, "sampled": self.sampled, **now}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        self.inserted, self.sampled = int(state["inserted"]), int(state["sampled"])
        ratio, start, offset = float(state["ratio"]), int(state["start"]), float(state["offset"])
        if self.inserted > start:  # else the settings of this start apply from the first insert
            if ratio != self._ratio:
                start, offset = self.inserted, (self.inserted - start) * ratio + offset
            self._start, self._offset = start, offset
