"""How fast a run learns over time, and when it is back at its rate after a disturbance. No clock.

A rate is always taken over WINDOW_S. The rate that a run has to return to is the median of the newest CALM_WINDOWS
undisturbed windows before the disturbance, so that a shared machine is compared with itself.
"""

import bisect
import statistics
from collections.abc import Sequence

WINDOW_S = 3.0
CALM_WINDOWS = 20
ENOUGH_SHARE = 0.9  #: fraction of the rate before
STEP_S = 0.1  #: between two candidate windows
SETTLED_S = 3.0  #: after a disturbance has passed, before a window counts as undisturbed

Interval = tuple[float, float]


class ProgressLog:
    """Rollouts learned from, by the pages of successive learners. Updates that were undone stay counted."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.totals: list[float] = []
        self._epoch = 0
        self._used = 0
        self._started_at = float("inf")  #: of this learner: a page has its age, and may be read late

    def add(self, at: float, uptime_s: float, epoch: int, used: int) -> None:
        """Read a page.

        Args:
          at: when it was read.
          uptime_s: of the learner, when it wrote the page.
          epoch: of the learner.
          used: rollouts that the run has learned from.
        """
        if epoch != self._epoch:
            self._epoch, self._used, self._started_at = epoch, used, at - uptime_s
        self._started_at = min(self._started_at, at - uptime_s)
        written_at = self._started_at + uptime_s
        if self.times and written_at <= self.times[-1]:
            return
        self.times.append(written_at)
        self.totals.append((self.totals[-1] if self.totals else 0.0) + used - self._used)
        self._used = used

    def total(self, at: float) -> float:
        """Rollouts learned from until then, interpolated linearly between pages."""
        after = bisect.bisect_left(self.times, at)
        if after in (0, len(self.times)):
            return self.totals[max(0, after - 1)] if self.times else 0.0
        (t0, t1), (n0, n1) = self.times[after - 1 : after + 1], self.totals[after - 1 : after + 1]
        return n0 + (n1 - n0) * (at - t0) / (t1 - t0)

    def rate(self, start: float, stop: float) -> float:
        """Rollouts per second."""
        return (self.total(stop) - self.total(start)) / (stop - start)

    def usual(self, before: float, disturbed: Sequence[Interval]) -> float | None:
        """The median rate of undisturbed windows before a moment; None if there are none.

        Args:
          before: the moment.
          disturbed: for each fault, when it began and when the run was back, or would have been.
        """
        rates: list[float] = []
        stop = before
        while self.times and stop - WINDOW_S >= self.times[0] and len(rates) < CALM_WINDOWS:
            start = stop - WINDOW_S
            overlapping = [began for began, passed in disturbed if began < stop and start < passed + SETTLED_S]
            if overlapping:
                stop = min(*overlapping, stop - STEP_S)
                continue
            rates.append(self.rate(start, stop))
            stop = start
        return statistics.median(rates) if rates else None

    def back(self, since: float, goal: float) -> float | None:
        """Start of the first window from `since` on that reaches `goal` rollouts per second, or None."""
        at, last = since, self.times[-1] if self.times else since
        while at + WINDOW_S <= last:
            if self.rate(at, at + WINDOW_S) >= goal:
                return at
            at += STEP_S
        return None

    def rates(self, period_s: float) -> tuple[list[float], list[float]]:
        """For a picture: moments, and the rate of the period that ends there."""
        count = int((self.times[-1] - self.times[0]) / period_s) if self.times else 0
        moments = [self.times[0] + period_s * (number + 1) for number in range(count)]
        return moments, [self.rate(moment - period_s, moment) for moment in moments]
