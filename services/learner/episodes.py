"""Statistics of the episodes that have ended: the last 100 of them, and the course of the mean return; and of those
that environments have failed in.
"""

import logging
import re
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from zerobeast.common.wire.episodes import NO_INFOS, mean_infos

RECENT_EPISODES = 100
HISTORY_POINTS = 60
MAX_INFOS = 100  #: names of numbers in infos
MAX_KINDS = 100  #: of reasons
WINDOW = 1000  #: newest episodes, of which some may be lost

log = logging.getLogger(__name__)


class LostEpisodes:
    """Episodes that environments have failed in, beside those that have ended.

    Attributes:
      count: how many.
      rows: of all actors that have come, each of which has an episode in progress or had one when its actor went.
    """

    def __init__(self) -> None:
        self.count = self.rows = 0
        self._reasons: dict[str, list[Any]] = {}  #: by kind: how many, and the newest
        self._window: deque[bool] = deque(maxlen=WINDOW)  #: whether each was lost; begins anew with each start

    @property
    def reason(self) -> str:
        """The most frequent one; empty if none is lost."""
        most = max(self._reasons.values(), default=[0, ""])
        return f"{most[1]}{', and others' if len(self._reasons) > 1 else ''}"

    def note_end(self) -> None:
        """Note an episode that has ended."""
        self._window.append(False)

    def add(self, reason: str) -> None:
        """Count a lost one."""
        if True not in self._window:
            log.warning("an episode is lost to %s; episodes_lost counts them", reason)
        self.count += 1
        self._window.append(True)
        kind = re.sub(r"[\d\[].*(?=\(|$)", "", reason)  # values differ from case to case
        if kind in self._reasons or len(self._reasons) < MAX_KINDS:
            self._reasons[kind] = [self._reasons.get(kind, [0])[0] + 1, reason]

    def excess(self, share: float) -> str:
        """A sentence if more than this share of WINDOW episodes are lost of the last ones; few failures never are."""
        if (lost := sum(self._window)) <= share * WINDOW:
            return ""
        of = f"{lost} of the last {len(self._window)} episodes were lost to {self.reason}"
        return f"{of}: expected at most {share * WINDOW:g} (learner.max_lost_episodes {share:g} of {WINDOW})"

    def state(self) -> dict[str, Any]:
        """What is counted, as plain values."""
        return {"count": self.count, "rows": self.rows, "reasons": self._reasons}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        self.count, self.rows = int(state["count"]), int(state["rows"])
        self._reasons = {str(kind): [int(many), str(newest)] for kind, (many, newest) in state["reasons"].items()}


class EpisodeStatistics:
    """Returns and lengths of whole, unclipped episodes."""

    def __init__(self) -> None:
        self.count = 0
        self.history: list[float] = []  #: at most 60 means, evenly spaced over all episodes so far
        self._stride = 1  #: episodes between two points of the history
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)  #: of the last episodes
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._infos: deque[Mapping[str, float]] = deque(maxlen=RECENT_EPISODES)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, None before the first."""
        return fmean(self.returns) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last 100 episodes in agent steps, None before the first."""
        return fmean(self._lengths) if self._lengths else None

    @property
    def infos(self) -> dict[str, float]:
        """The mean of each number in the last infos of the last 100 episodes, over those that have it."""
        return {f"info/{name}": mean for name, mean in list(mean_infos(self._infos).items())[:MAX_INFOS]}

    def add(self, episode_return: float, length: int, infos: Mapping[str, float] = NO_INFOS) -> None:
        """Count an episode."""
        self.count += 1
        self._infos.append(infos)
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
        self.history.append(fmean(self.returns))

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "count": self.count,
            "history": list(self.history),
            "stride": self._stride,
            "returns": list(self.returns),
            "lengths": list(self._lengths),
            "infos": [dict(infos) for infos in self._infos],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        self.count = int(state["count"])
        self.history = [float(value) for value in state["history"]]
        self._stride = max(1, int(state["stride"]))
        self.returns.extend(float(value) for value in state["returns"])
        self._lengths.extend(int(value) for value in state["lengths"])
        self._infos.extend(state["infos"])
