"""Figures about a run, without clocks.

Nothing here is ever NaN: an unknown value is None.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECENT_EPISODES = 100
HISTORY_POINTS = 60
RECENT_UPDATES = 100
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
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, None before the first."""
        return mean(self._returns)

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last 100 episodes in agent steps, None before the first."""
        return mean(self._lengths)

    def add(self, episode_return: float, length: int) -> None:
        """Count an episode."""
        self.count += 1
        self._returns.append(float(episode_return))
        self._lengths.append(int(length))
        if self.count % self._stride == 0:
            self._remember()

    def _remember(self) -> None:
        if len(self.history) == HISTORY_POINTS:
            self.history = self.history[1::2]
            self._stride *= 2
            if self.count % self._stride:
                return
        self.history.append(math.fsum(self._returns) / len(self._returns))

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "count": self.count,
            "history": list(self.history),
            "stride": self._stride,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        self.count = int(state["count"])
        self.history = [float(value) for value in state["history"]]
        self._stride = max(1, int(state["stride"]))
        self._returns.extend(float(value) for value in state["returns"])
        self._lengths.extend(int(value) for value in state["lengths"])


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
