"""Samples per insert: how often a replay is learned from for each rollout that it takes, bounded both ways.

    pace = Pace(ratio=4.0, min_size=1000, error_buffer=400.0)
    due = pace.may_sample(batch_size)       # what `Learning.due` says
    pace.insert(rows); pace.sample(rows)    # what was done

As Reverb's SampleToInsertRatio (Cassirer et al. 2021, "Reverb: A Framework for Experience Replay"). Pure.
"""

from __future__ import annotations

from typing import Any


class Pace:
    """A limiter of rates. With d = inserted * ratio - sampled and d0 = min_size * ratio,

        d0 - error_buffer <= d <= d0 + error_buffer

    once `min_size` were inserted. The learner steps first, so it is at the lower bound as long as it keeps up.

    Args:
      ratio: samples per insert; a row that is learned from twice is two samples.
      min_size: inserts before the first sample. At most what the replay holds.
      error_buffer: samples by which either side may be ahead.

    Raises:
      ValueError: a number that leaves one side waiting for good.
    """

    def __init__(self, ratio: float, min_size: int, error_buffer: float) -> None:
        if ratio <= 0 or min_size < 1:
            raise ValueError(f"ratio {ratio:g} and min_size {min_size}: expected more than 0, and at least 1")
        if error_buffer < max(1.0, ratio):
            raise ValueError(
                f"error_buffer {error_buffer:g}: expected at least {max(1.0, ratio):g}, one insert's worth"
            )
        self._ratio, self._min_size, self._error_buffer = ratio, min_size, error_buffer
        self.inserted = 0  #: rows, over all starts
        self.sampled = 0

    @property
    def filled(self) -> bool:
        """Whether enough was inserted for samples; if none may be drawn then, too many were."""
        return self.inserted >= self._min_size

    def may_sample(self, rows: int) -> bool:
        """Whether so many may be learned from now."""
        return self.filled and self._ahead(0, rows) >= -self._error_buffer

    def may_insert(self, rows: int) -> bool:
        """Whether so many may be inserted now."""
        return self.inserted + rows <= self._min_size or self._ahead(rows, 0) <= self._error_buffer

    def insert(self, rows: int) -> None:
        """Count rows that were inserted."""
        self.inserted += rows

    def sample(self, rows: int) -> None:
        """Count rows that were learned from."""
        self.sampled += rows

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"inserted": self.inserted, "sampled": self.sampled}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        self.inserted, self.sampled = int(state["inserted"]), int(state["sampled"])

    def _ahead(self, inserts: int, samples: int) -> float:
        """d - d0 after so many more."""
        return (self.inserted + inserts - self._min_size) * self._ratio - (self.sampled + samples)
