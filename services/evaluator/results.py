"""What the evaluations of a run have found, in its folder: the table, its curves and the best policy."""

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

from zerobeast.common.errors import BeastError, CheckpointError, ConfigError, raise_as
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.evaluations import Row
from zerobeast.common.files.event_file import EventFile
from zerobeast.common.settings import RunConfig
from zerobeast.rl.nets.checkpoint import load_checkpoint
from zerobeast.services.envserver.levels import evaluation_envs

log = logging.getLogger(__name__)


class Results:
    """The evaluations of a run, with these settings."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.deciding: list[str] = []  #: ids of the environments whose returns are the score of a policy
        self.best: float | None = None  #: the highest score
        self._events: EventFile | None = None

    def open(self) -> None:
        """Find out what was evaluated before. Raises ConfigError if that cannot be read, or a level is unknown."""
        levels = evaluation_envs(self._config)
        first = next(iter(levels.values()))
        self.deciding = [task for task, level in levels.items() if level == first]
        self.best = max(self.scores().values(), default=None)

    def scores(self) -> dict[int, float]:
        """Mean returns in the deciding environments by agent steps, of all policies so far that took such actions.

        Raises:
          ConfigError: they cannot be read.
        """
        rows = evaluations.read_evaluations(self._config.folder)
        return evaluations.scores(rows, self.deciding, self._config.evaluate.actions)

    def add(self, rows: Sequence[Row], path: Path, played: os.stat_result) -> None:
        """Add rows to the table.

        Args:
          rows: what was found about a policy.
          path: its checkpoint.
          played: the file that `path` was.

        Raises:
          OSError: the table cannot be written.
          BeastError: the learner has gone back to an earlier step, so that the policy is no longer one of the run.
        """
        with raise_as(OSError, "", ConfigError), evaluations.table_lock(self._config.folder):  # no fault of the policy
            if not path.exists() or not os.path.samestat(path.stat(), played):
                raise BeastError(f"{path}: it is gone, because the run was resumed from an earlier step")
            evaluations.append_evaluations(self._config.folder, rows)

    def draw(self, rows: Sequence[Row], steps: int) -> None:
        """Add points to the curves of TensorBoard."""
        try:
            self._events = self._events or EventFile(self._config.folder / run_files.TENSORBOARD_EVALUATIONS, steps - 1)
            self._events.write(evaluations.curve_values(rows), steps)
        except OSError as error:
            log.warning("no curves of the evaluations: %s", error.strerror or error)

    def keep_if_best(self, path: Path, steps: int) -> None:
        """Make a policy that was evaluated the best one, unless the best one so far has a higher return.

        Args:
          path: of its checkpoint, which is moved.
          steps: agent steps that it has trained for.
        """
        scores = self.scores()
        self.best = max(scores.values(), default=None)
        best, before = self._config.folder / run_files.BEST_CHECKPOINT, None
        try:
            before = load_checkpoint(best)
        except CheckpointError as error:
            log.warning("%s; another takes its place", error)
            run_files.move_aside(best)
        if before is None or scores.get(steps, -math.inf) >= scores.get(before["counters"]["agent_steps"], -math.inf):
            best.parent.mkdir(exist_ok=True)
            path.replace(best)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
