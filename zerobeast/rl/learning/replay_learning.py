"""Off-policy learning: rollouts are stored and acknowledged on arrival; steps draw from the store at their own pace.

class DQNLearning(ReplayLearning[Transitions]):
    def update(self, batch, weights, agent_steps): ...      # what an algorithm adds: one update, new priorities
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, Origin, PolicySpec, rollout_record
from zerobeast.rl.data import Pace, Rollouts
from zerobeast.rl.learning.gradient_descent import Step, summarize_steps
from zerobeast.rl.learning.parts import Parts
from zerobeast.rl.ops import ranks
from zerobeast.rl.protocol import Credit, Learned, Metrics
from zerobeast.rl.replay.items import Items
from zerobeast.rl.replay.replay import Replay
from zerobeast.rl.replay.spans import S
from zerobeast.rl.replay_settings import ReplaySettings


class UpdateResult(NamedTuple):
    """The result of one update."""

    step: Step  #: the optimiser step whose loss and learning rate are reported
    metrics: Metrics  #: the same names every time
    priorities: Tensor  #: [N] float32 >= 0, new priorities of the drawn items, not yet raised to alpha
    transitions: int  #: that were learned from


class ReplayLearning(Parts, ABC, Generic[S]):
    """Implements `add` and `step` of `zerobeast.rl.protocol.Learning` in terms of one method: `update`.

    Each rank has a replay of its own, which holds and draws its share of the configured numbers.

    Args:
      config: of the run, whose algorithm has replay settings.
      env, policy: of the rollouts.
      items: the kind of items to draw.
      device: of the drawn items.
      first_priorities: as for `zerobeast.rl.replay.replay.Replay`.

    Raises:
      ConfigError: the replay file cannot be made, or belongs to another run; or ranks cannot share a batch.
    """

    credit: Credit = "after_store"

    def __init__(
        self,
        config: RunConfig,
        env: EnvSpec,
        policy: PolicySpec,
        items: Items[S],
        device: torch.device,
        first_priorities: Callable[[S], Tensor] | None = None,
    ) -> None:
        assert isinstance(config.algorithm, ReplaySettings), "which the algorithm has"
        settings = divide_replay(config.algorithm, config.section)
        record = rollout_record(env, policy, config.learner.unroll_length)
        seed = ranks.rank_seed(config.seed)
        self._replay = Replay(replay_folder(config.store), record, env, items, settings, seed, device, first_priorities)
        self._settings, self._total_steps = settings, config.total_steps
        self._unroll_length = config.learner.unroll_length
        self.pace = Pace(settings.samples_per_insert, settings.replay_min_size)
        self.parts = {"pace": self.pace, "replay": self._replay}

    @property
    def due(self) -> bool:
        """Whether enough is stored for a step, and the pace allows one."""
        settings = self._settings
        step = settings.batch_size * settings.updates_per_step * settings.per_item  # at most: sequences may be shorter
        return self.pace.may_sample(step) and self._replay.size >= settings.batch_size

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Store rollouts: when this returns they outlive the process."""
        del agent_steps
        self._replay.insert(rollouts)
        self.pace.insert(len(rollouts) * self._unroll_length)

    def step(self, agent_steps: int) -> Learned:
        """Draw and learn, `updates_per_step` times."""
        done = [self._update(agent_steps) for _ in range(self._settings.updates_per_step)]
        return summarize_steps([(each.step, each.metrics) for each in done])

    def recover_rows(self) -> Sequence[Origin]:
        """Rows in the file that are newer than the checkpoint."""
        rows = self._replay.recover_rows()
        self.pace.insert(len(rows) * self._unroll_length)
        return rows

    @abstractmethod
    def update(self, batch: S, weights: Tensor, agent_steps: int) -> UpdateResult:
        """Learn from the drawn items.

        Args:
          batch: on the device of the network.
          weights: [N] float32, the weight of each item in the loss.
          agent_steps: of the run so far.
        """

    def _update(self, agent_steps: int) -> UpdateResult:
        drawn = self._replay.draw(self._settings.batch_size, self._beta(agent_steps))
        updated = self.update(drawn.batch, drawn.weights, agent_steps)
        self.pace.sample(updated.transitions)
        if self._settings.priority_exponent and updated.step.applied:
            self._replay.update(drawn.ids, updated.priorities)
        return updated

    def _beta(self, agent_steps: int) -> float:
        start = self._settings.importance_exponent
        if self._settings.importance_schedule == "constant":
            return start
        return start + (1.0 - start) * min(1.0, agent_steps / self._total_steps)


def divide_replay(settings: ReplaySettings, name: str) -> ReplaySettings:
    """The settings of one rank's replay: sizes in them are those of all ranks together.

    Raises:
      ConfigError: ranks cannot share a batch.
    """
    n = ranks.size()
    if settings.batch_size % n:
        raise ConfigError(
            path=f"{name}.batch_size", value=settings.batch_size, expected=f"a multiple of {n}, the number of ranks"
        )
    sizes = settings.model_dump(include={"batch_size", "replay_size", "replay_min_size"})
    return settings.model_copy(update={size: -(-of_all // n) for size, of_all in sizes.items()})


def replay_folder(store: Path) -> Path:
    """The folder of this rank's replay, in that of a run's."""
    return store / f"rank-{ranks.rank()}" if ranks.rank() else store
