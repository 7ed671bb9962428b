"""Sums over the last few seconds, for the health page. Time is an argument."""

from __future__ import annotations

from collections import deque


class Meter:
    """Counts rows, requests and batches.

    Args:
      now: when counting begins.
      span_s: how far back the rates look.
    """

    def __init__(self, now: float, span_s: float = 3.0) -> None:
        self.span_s = span_s
        self._totals = (0, 0, 0)  # rows, requests, batches
        self._marks = deque([(now, self._totals)])

    def batch(self, rows: int, requests: int) -> None:
        """Count one batch."""
        before = self._totals
        self._totals = (before[0] + rows, before[1] + requests, before[2] + 1)

    def rates(self, now: float) -> dict[str, float]:
        """All rows so far, and what happened since a moment about `span_s` ago."""
        self._marks.append((now, self._totals))
        while len(self._marks) > 1 and self._marks[1][0] <= now - self.span_s:
            self._marks.popleft()
        then, before = self._marks[0]
        seconds = max(now - then, 1e-9)
        rows, requests, batches = (new - old for new, old in zip(self._totals, before, strict=True))
        return {
            "rows": self._totals[0],
            "rows_per_s": round(rows / seconds, 1),
            "requests_per_s": round(requests / seconds, 1),
            "batch_rows_mean": round(rows / max(batches, 1), 1),
        }
