"""All figures of a running learner in one place: what an update adds, what the health page and metrics.csv show."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.common.wire.episodes import Episode, LostEpisode
from zerobeast.rl.data import Pace
from zerobeast.rl.protocol import Learned
from zerobeast.services.learner.episodes import RECENT_EPISODES, EpisodeStatistics, LostEpisodes
from zerobeast.services.learner.queue import Fate, Message
from zerobeast.services.learner.update import AddedRows

RECENT_UPDATES = 100
MAX_ENDED_EPISODES = 100_000  #: episodes between two rows of metrics that are written one by one
MAX_LAG = 255  #: last bin of the histogram: this many updates or more


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


RATE_SPAN_S = 10.0


class Meters:
    """Figures about the run. Time is an argument.

    Args:
      tasks: ids of the run's environments.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self.episodes, self.lost = EpisodeStatistics(), LostEpisodes()
        self._tasks = {task: EpisodeStatistics() for task in tasks}
        self.pace: Pace | None = None  #: of the algorithm, if it bounds its samples per insert
        self._starved_s = self._limited_s = 0.0
        self._pacing = SlidingWindow(RATE_SPAN_S)
        self.last: Learned | None = None  #: from the newest step in which something was learned
        self.lag = PolicyLag()
        self._rollouts: Counter[Fate] = Counter()
        self._ended: deque[tuple[int, str, Episode | LostEpisode]] = deque(maxlen=MAX_ENDED_EPISODES)
        self._steps = self._updates = 0
        self._waited_s = self._busy_s = 0.0
        self._receiving, self._learning = SlidingWindow(RATE_SPAN_S), SlidingWindow(RATE_SPAN_S)
        self._sums: dict[str, Tensor] = {}  #: of the algorithm's metrics since `losses` was called
        self._means: dict[str, float] = {}  #: of the same at that call
        self._summed = 0

    @property
    def score(self) -> float | None:
        """The mean return of the last 100 episodes, None while there are not as many."""
        return self.episodes.mean_return if len(self.episodes.returns) == RECENT_EPISODES else None

    def count_wait(self, seconds: float) -> None:
        """Count time without a batch; once a replay is filled, it is the ratio that keeps learning waiting."""
        self._waited_s += seconds
        if self.pace is not None and self.pace.filled:
            self._starved_s += seconds

    def count_delay(self, seconds: float) -> None:
        """Count time in which a batch waited for a step that was due before it."""
        self._limited_s += seconds

    def count_finished(self, messages: list[Message], agent_steps: int = 0) -> None:
        """Count messages that are done by this step, and the episodes that ended in them."""
        tasks = list(self._tasks)
        for message in messages:
            self._rollouts[message.fate] += message.rollouts
            self.lost.rows += message.rollouts if message.seq == 1 else 0
            for lost in message.lost:
                self.lose(agent_steps, tasks[message.task], lost)
            for episode in message.episodes:
                self.count(agent_steps, tasks[message.task], episode)

    def count(self, agent_steps: int, task: str, episode: Episode) -> None:
        """Count an episode that has ended by this step, in one of the run's environments."""
        self.episodes.add(*episode)
        self.lost.note_end()
        self._tasks[task].add(*episode)
        self._ended.append((agent_steps, task, episode))

    def lose(self, agent_steps: int, task: str, lost: LostEpisode) -> None:
        """Count an episode that an environment has failed in by this step."""
        self.lost.add(lost.reason)
        self._ended.append((agent_steps, task, lost))

    def take_ended(self) -> list[tuple[int, str, Episode | LostEpisode]]:
        """The newest episodes since the last call, lost ones too: agent steps of the run, environment and episode."""
        found = list(self._ended)
        self._ended.clear()
        return found

    def count_batch(self, added: AddedRows, version: int, seconds: float) -> None:
        """Count a batch that was added while the policy had this version, and the time that this took."""
        self.lag.add(version, added.behaviour_versions)
        self._steps += added.agent_steps
        self._busy_s += seconds

    def count_update(self, learned: Learned, seconds: float, now: float) -> None:
        """Count a step, and the time that it took."""
        self._updates += 1
        self._busy_s += seconds
        self._learning_per_s(now)
        if learned.steps:
            self.last = learned
            self._summed += 1
            for name, value in learned.metrics.items():
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
            "episodes_begun": self.episodes.count + self.lost.count + self.lost.rows,
            "episodes": self.episodes.count,
            "episodes_lost": self.lost.count,
            "lost_to": self.lost.reason,
            "mean_return_100": self.episodes.mean_return,
            "mean_length_100": self.episodes.mean_length,
            "mean_return_100_by_task": by_task if len(by_task) > 1 else {},
            "policy_lag_mean": self.lag.mean,
            "policy_lag_max": self.lag.max,
            "stale_fraction": round(stale / max(used + stale, 1e-9), 3),
            "waiting_fraction": round(min(1.0, waited), 3),
            "update_ms": round(1000 * busy / updates, 2) if updates > 0 else None,
            "learning_rate": self.last.learning_rate if self.last else None,
            "loss": self.last.loss if self.last else None,
            "grad_norm": self.last.grad_norm if self.last else None,
            "entropy": self._means.get("entropy"),
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
        return {**self.episodes.state(), "tasks": tasks, "lost": self.lost.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; skips environments that are not the run's: `resume_run` refuses their checkpoint."""
        self.episodes.load(state)
        self.lost.load(state["lost"])
        for task in self._tasks.keys() & state["tasks"].keys():
            self._tasks[task].load(state["tasks"][task])

    def losses(self) -> dict[str, float]:
        """Means of the algorithm's metrics over the updates since the last call."""
        self._means = {name: float(value) / self._summed for name, value in self._sums.items()}
        self._sums, self._summed = {}, 0
        return self._means
