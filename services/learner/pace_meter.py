"""How long learning and rollouts wait for each other, if the algorithm bounds its samples per insert. Pure."""

from __future__ import annotations

from typing import Any

from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.rl.data.pace import Pace

SPAN_S = 10.0  #: of the fractions


class PaceMeter:
    """Seconds of both waits since the start of the learner, and their shares of the last seconds.

    Args:
      pace: of the algorithm.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._starved_s = self._limited_s = 0.0
        self._recent = SlidingWindow(SPAN_S)

    def waited(self, seconds: float) -> None:
        """Count time without a batch; once the replay is filled, such time is due to the ratio."""
        if self._pace.filled:
            self._starved_s += seconds

    def delayed(self, seconds: float) -> None:
        """Count time in which a batch waited for a step that was due before it."""
        self._limited_s += seconds

    def page(self, now: float) -> dict[str, Any]:
        """For the health page; all ratios are of rows."""
        starved, limited = self._recent.per_s(now, self._starved_s, self._limited_s)
        return {
            "samples_per_insert": round(self._pace.sampled / max(1, self._pace.inserted), 3),
            "replay_fill": round(self._pace.fill, 3),
            "replay_starved_s": round(self._starved_s, 3),
            "ratio_limited_s": round(self._limited_s, 3),
            "replay_starved_fraction": round(min(1.0, starved), 3),
            "ratio_limited_fraction": round(min(1.0, limited), 3),
        }
