"""All figures of a running learner in one place: what an update adds, what the health page and metrics.csv show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.algos.protocol import Learned
from zerobeast.services.learner.queue import Message
from zerobeast.services.learner.statistics import EpisodeStatistics, PolicyLag, Rate
from zerobeast.services.learner.update import Update


class Meters:
    """Figures about the run. Time is an argument.

    Args:
      tasks: ids of the run's environments.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self.episodes = EpisodeStatistics()
        self._tasks = {task: EpisodeStatistics() for task in tasks}
        self.last: Learned | None = None  #: from the newest batch of which something was learned
        self._lag = PolicyLag()
        self._steps, self._waited, self._updates, self._busy = Rate(), Rate(), Rate(), Rate()
        self._used, self._stale = Rate(), Rate()  #: rollouts
        self._sums: dict[str, Tensor] = {}  #: of the algorithm's metrics since `losses` was called
        self._summed = 0

    def waited(self, seconds: float, now: float) -> None:
        """Count time without a batch."""
        self._waited.add(seconds, now)

    def finished(self, messages: list[Message], now: float) -> None:
        """Count messages that are done, and the episodes that ended in them."""
        own = list(self._tasks.values())
        for fate, rate in (("used", self._used), ("stale", self._stale)):
            rate.add(sum(message.rollouts for message in messages if message.fate == fate), now)
        for message in messages:
            for episode in message.episodes:
                self.episodes.add(*episode)
                own[message.task].add(*episode)

    def updated(self, update: Update, version: int, now: float) -> None:
        """Count a batch.

        Args:
          update: what it did.
          version: of the weights that it was learned with.
          now: seconds.
        """
        self._lag.add(version, update.behaviour_versions)
        self._steps.add(update.agent_steps, now)
        self._updates.add(1, now)
        self._busy.add(update.seconds, now)
        if update.learned.steps:
            self.last = update.learned
            self._summed += 1
            for name, value in update.learned.metrics.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value

    def page(self, now: float) -> dict[str, Any]:
        """Current figures, rates over the last seconds; None what is not known yet."""
        updates, used, stale = (rate.per_s(now) for rate in (self._updates, self._used, self._stale))
        return {
            "agent_steps_per_s": round(self._steps.per_s(now), 1),
            "episodes": self.episodes.count,
            "mean_return_100": self.episodes.mean_return,
            "mean_length_100": self.episodes.mean_length,
            "mean_return_100_by_task": self._by_task(),
            "policy_lag_mean": self._lag.mean,
            "policy_lag_max": self._lag.max,
            "stale_fraction": round(stale / max(used + stale, 1e-9), 3),
            "waiting_fraction": round(min(1.0, self._waited.per_s(now)), 3),
            "update_ms": round(1000 * self._busy.per_s(now) / updates, 2) if updates > 0 else None,
            "learning_rate": self.last.learning_rate if self.last else None,
            "loss": self.last.loss if self.last else None,
            "grad_norm": self.last.grad_norm if self.last else None,
        }

    def state(self) -> dict[str, Any]:
        """Of episodes, for a checkpoint."""
        return {**self.episodes.state(), "tasks": {task: one.state() for task, one in self._tasks.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; in files of before there were tasks they begin anew."""
        self.episodes.load(state)
        saved = state.get("tasks", {})
        for task in self._tasks.keys() & saved.keys():
            self._tasks[task].load(saved[task])

    def _by_task(self) -> dict[str, float | None]:
        """Of a run with several."""
        return {task: one.mean_return for task, one in self._tasks.items()} if len(self._tasks) > 1 else {}

    def losses(self) -> dict[str, float]:
        """Means of the algorithm's metrics over the updates since the last call."""
        means = {name: float(value) / self._summed for name, value in self._sums.items()}
        self._sums, self._summed = {}, 0
        return means

    def lags(self) -> NDArray[np.int64]:
        """[n], steps by policy lag since the last call."""
        return self._lag.histogram()
