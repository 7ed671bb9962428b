"""All figures of a running learner in one place: what an update adds, what the health page and metrics.csv show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.rl.data.pace import Pace
from zerobeast.rl.protocol import Learned
from zerobeast.services.learner.queue import Fate, Message
from zerobeast.services.learner.statistics import RECENT_EPISODES, Collapse, EpisodeStatistics, PolicyLag
from zerobeast.services.learner.update import Added, Update

RATE_SPAN_S = 10.0


class Meters:
    """Figures about the run. Time is an argument.

    Args:
      tasks: ids of the run's environments.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self.episodes = EpisodeStatistics()
        self._tasks = {task: EpisodeStatistics() for task in tasks}
        self.pace: Pace | None = None  #: of the algorithm, if it bounds its samples per insert
        self._starved_s = self._limited_s = 0.0
        self._pacing = SlidingWindow(RATE_SPAN_S)
        self.last: Learned | None = None  #: from the newest step in which something was learned
        self.lag, self.collapse = PolicyLag(), Collapse()
        self._rollouts: Counter[Fate] = Counter()
        self._steps = self._updates = 0
        self._waited_s = self._busy_s = 0.0
        self._receiving, self._learning = SlidingWindow(RATE_SPAN_S), SlidingWindow(RATE_SPAN_S)
        self._sums: dict[str, Tensor] = {}  #: of the algorithm's metrics since `losses` was called
        self._summed = 0

    def waited(self, seconds: float) -> None:
        """Count time without a batch; once a replay is filled, it is the ratio that keeps learning waiting."""
        self._waited_s += seconds
        if self.pace is not None and self.pace.filled:
            self._starved_s += seconds

    def delayed(self, seconds: float) -> None:
        """Count time in which a batch waited for a step that was due before it."""
        self._limited_s += seconds

    def finished(self, messages: list[Message]) -> None:
        """Count messages that are done, and the episodes that ended in them."""
        own = list(self._tasks.values())
        for message in messages:
            self._rollouts[message.fate] += message.rollouts
            for episode in message.episodes:
                self.episodes.add(*episode)
                own[message.task].add(*episode)

    def added(self, added: Added, version: int) -> None:
        """Count a batch that was added while the policy had this version."""
        self.lag.add(version, added.behaviour_versions)
        self._steps += added.agent_steps
        self._busy_s += added.seconds

    def updated(self, update: Update, now: float) -> None:
        """Count a step."""
        self._updates += 1
        self._busy_s += update.seconds
        self._learning_per_s(now)
        if update.learned.steps:
            self.last = update.learned
            self._summed += 1
            for name, value in update.learned.metrics.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value

    def page(self, now: float) -> dict[str, Any]:
        """Current figures, with rates over the last seconds; None for what is not known yet."""
        by_task = {task: one.mean_return for task, one in self._tasks.items()}
        steps, updates, busy = self._learning_per_s(now)
        waited, used, stale = self._receiving.per_s(
            now, self._waited_s, self._rollouts["used"], self._rollouts["stale"]
        )
        return {
            "agent_steps_per_s": round(steps, 1),
            "episodes": self.episodes.count,
            "mean_return_100": self.episodes.mean_return,
            "mean_length_100": self.episodes.mean_length,
            "collapsed": self.collapse.sentence,
            "mean_return_100_by_task": by_task if len(by_task) > 1 else {},
            "policy_lag_mean": self.lag.mean,
            "policy_lag_max": self.lag.max,
            "stale_fraction": round(stale / max(used + stale, 1e-9), 3),
            "waiting_fraction": round(min(1.0, waited), 3),
            "update_ms": round(1000 * busy / updates, 2) if updates > 0 else None,
            "learning_rate": self.last.learning_rate if self.last else None,
            "loss": self.last.loss if self.last else None,
            "grad_norm": self.last.grad_norm if self.last else None,
            **({} if self.pace is None else self._pace_page(self.pace, now)),
        }

    def _pace_page(self, pace: Pace, now: float) -> dict[str, Any]:
        """How long learning and rollouts wait for each other; all ratios are of rows."""
        starved, limited = self._pacing.per_s(now, self._starved_s, self._limited_s)
        return {
            "samples_per_insert": round(pace.sampled / max(1, pace.inserted), 3),
            "replay_fill": round(pace.fill, 3),
            "replay_starved_s": round(self._starved_s, 3),
            "ratio_limited_s": round(self._limited_s, 3),
            "replay_starved_fraction": round(min(1.0, starved), 3),
            "ratio_limited_fraction": round(min(1.0, limited), 3),
        }

    def _learning_per_s(self, now: float) -> list[float]:
        """Agent steps, updates and busy time per second; 0 before the first step, when the learner only waits."""
        if not self._steps:
            return [0.0, 0.0, 0.0]
        return self._learning.per_s(now, self._steps, self._updates, self._busy_s)

    def state(self) -> dict[str, Any]:
        """Episode statistics, for a checkpoint."""
        tasks = {task: one.state() for task, one in self._tasks.items()}
        return {**self.episodes.state(), "tasks": tasks, "collapse": list(self.collapse.seen)}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; skips environments that are not the run's, since `resumed` refuses their checkpoint."""
        self.episodes.load(state)
        if seen := state.get("collapse"):  # absent in older checkpoints
            self.collapse.seen = [float(seen[number]) for number in range(3)]
        for task in self._tasks.keys() & state["tasks"].keys():
            self._tasks[task].load(state["tasks"][task])

    def losses(self, now: float) -> dict[str, float]:
        """Means of the algorithm's metrics over the updates since the last call, which show whether it collapses."""
        means = {name: float(value) / self._summed for name, value in self._sums.items()}
        self._sums, self._summed = {}, 0
        if "entropy" in means and len(self.episodes.returns) == RECENT_EPISODES:
            self.collapse.note(self.episodes.returns, means["entropy"], now)
        return means
