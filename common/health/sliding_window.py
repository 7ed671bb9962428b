"""How fast totals have grown over the last few seconds. Time is an argument."""

from collections import deque

SPACING = 0.08  #: smallest gap between two marks, as a share of the window, however often it is called


class SlidingWindow:
    """Growth of totals over the last few seconds; the first call opens the window.

    window = SlidingWindow(5.0)
    window.growth(now, steps, waited_s)
    steps_per_s, waiting_fraction = window.per_s(now, steps, waited_s)
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s  #: how far back the window reaches once it has been open that long
        self._marks: deque[tuple[float, tuple[float, ...]]] = deque()  #: (time, totals), oldest first

    def growth(self, now: float, *totals: float) -> tuple[float, list[float]]:
        """Record the current totals; returns the length of the window in seconds, and how much each grew in it."""
        if not self._marks or now - self._marks[-1][0] >= SPACING * self._span_s:
            self._marks.append((now, totals))
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._span_s:
            self._marks.popleft()
        then, before = self._marks[0]
        return now - then, [new - old for new, old in zip(totals, before, strict=True)]

    def per_s(self, now: float, *totals: float) -> list[float]:
        """As `growth`, per second; 0 while no time has passed."""
        seconds, grown = self.growth(now, *totals)
        return [each / seconds if seconds > 0 else 0.0 for each in grown]
