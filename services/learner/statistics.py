"""Figures about a run, without clocks.

Nothing here is ever NaN: an unknown value is None.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

RECENT_EPISODES = 100
HISTORY_POINTS = 60
RECENT_UPDATES = 100
FROZEN, LASTING_S = 0.01, 60.0  #: entropy, in nats, and time from which a policy may have collapsed
MAX_LAG = 255  #: last bin of the histogram: this many updates or more


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None if there are no values."""
    known = list(values)
    return math.fsum(known) / len(known) if known else None


class EpisodeStatistics:
    """Returns and lengths of whole, unclipped episodes."""

    def __init__(self) -> None:
        self.count = 0
        self.history: list[float] = []  #: at most 60 means, evenly spaced over all episodes so far
        self._stride = 1  #: episodes between two points of the history
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)  #: of the last episodes
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, None before the first."""
        return mean(self.returns)

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last 100 episodes in agent steps, None before the first."""
        return mean(self._lengths)

    def add(self, episode_return: float, length: int) -> None:
        """Count an episode."""
        self.count += 1
        self.returns.append(float(episode_return))
        self._lengths.append(int(length))
        if self.count % self._stride == 0:
            self._remember()

    def _remember(self) -> None:
        if len(self.history) == HISTORY_POINTS:
            self.history = self.history[1::2]
            self._stride *= 2
            if self.count % self._stride:
                return
        self.history.append(math.fsum(self.returns) / len(self.returns))

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "count": self.count,
            "history": list(self.history),
            "stride": self._stride,
            "returns": list(self.returns),
            "lengths": list(self._lengths),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        self.count = int(state["count"])
        self.history = [float(value) for value in state["history"]]
        self._stride = max(1, int(state["stride"]))
        self.returns.extend(float(value) for value in state["returns"])
        self._lengths.extend(int(value) for value in state["lengths"])


class Collapse:
    """Whether the policy has explored almost nothing for a minute, and done far worse than at its best."""

    def __init__(self) -> None:
        self.sentence = ""  #: what is wrong; empty: nothing
        self.seen: list[float] = []  #: the best mean return, the deviation of returns then, the lowest mean return
        self._since = math.inf

    def note(self, returns: Sequence[float], entropy: float, now: float) -> None:
        """Judge by the last returns, and the entropy of the policy in nats.

        The mean must have fallen by more than returns vary and by half of its range so far; half of that keeps it so.
        """
        mean_now, deviation = fmean(returns), pstdev(returns)
        best, least, lowest = self.seen or (mean_now, deviation, mean_now)
        best, least = max((best, least), (mean_now, deviation))
        self.seen = [best, least, min(lowest, mean_now)]
        scale = 0.5 if self.sentence else 1.0
        fallen = best - mean_now > scale * max(deviation, least, (best - self.seen[2]) / 2)
        self._since = min(self._since, now) if fallen and abs(entropy) < FROZEN / scale else math.inf
        before, self.sentence = self.sentence, ""
        if now - self._since >= LASTING_S:
            self.sentence = f"entropy {entropy:.2g}, mean return {mean_now:.4g} after {best:.4g}"
            if not before:
                log.warning("the policy has collapsed: %s", self.sentence)


class PolicyLag:
    """How many updates old the policy that chose an action was when the learner used the action."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=RECENT_UPDATES)  #: (steps, sum, max) per update
        self._histogram = np.zeros(MAX_LAG + 1, np.int64)

    @property
    def mean(self) -> float | None:
        """Mean over the steps of the last 100 updates, None before the first."""
        steps = sum(entry[0] for entry in self._recent)
        return sum(entry[1] for entry in self._recent) / steps if steps else None

    @property
    def max(self) -> int | None:
        """Maximum over the last 100 updates, None before the first."""
        return max((entry[2] for entry in self._recent), default=None)

    def add(self, version: int, behaviour_versions: NDArray[np.int64]) -> None:
        """Count an update's valid steps.

        A version newer than `version` comes from a start that went on past its last checkpoint; it counts as no lag.

        Args:
          version: updates that the learner has done.
          behaviour_versions: [n], versions of the policies that acted.
        """
        lags = np.maximum(version - behaviour_versions, 0)
        if lags.size:
            self._recent.append((lags.size, int(lags.sum()), int(lags.max())))
            self._histogram += np.bincount(np.minimum(lags, MAX_LAG), minlength=MAX_LAG + 1)

    def histogram(self) -> NDArray[np.int64]:
        """Steps by lag since the last call; the last bin also holds everything beyond."""
        counts, self._histogram = self._histogram, np.zeros_like(self._histogram)
        return counts
