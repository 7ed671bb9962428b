"""Checkpoints under other names, which the README here lists: by their number, to stay or to be evaluated; the best.

They are hard links, so each costs no time; on a file system without such links, copies.
"""

import logging
import math
import os
import shutil
from pathlib import Path

from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.atomic import draft_file
from zerobeast.common.settings import RunConfig
from zerobeast.rl.nets.checkpoint import UNREADABLE_ERRORS
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast.services.learner.meters import Meters

log = logging.getLogger(__name__)

NUMBERED_FOLDERS = (run_files.CHECKPOINTS, run_files.TO_EVALUATE, run_files.VIDEOS)  #: folders of <agent_steps>.<kind>
MAX_WAITING = 100  #: checkpoints that wait for an evaluator, which may not run at all


class CheckpointLinks:
    """Which checkpoints of a run get other names, and when.

    Args:
      config: of the run.
      steps: where it stands.
    """

    def __init__(self, config: RunConfig, steps: int) -> None:
        self._config, self._folder = config, config.folder
        self._best = self._rewind(steps)  #: mean return of 100 episodes of the best checkpoint
        self.plan(steps)

    def due(self, steps: int) -> bool:
        """Whether a checkpoint has to be saved at this step."""
        return any(at is not None and steps >= at for at in (self._keep_at, self._evaluate_at))

    def link_saved(self, steps: int, *, score: float | None, finished: bool) -> None:
        """Give the checkpoint that was just saved its other names.

        Args:
          steps: of it.
          score: its mean return of 100 episodes, None if there were not as many.
          finished: whether the run ends with it, so that it is evaluated in any case.
        """
        try:
            if self._keep_at is not None and steps >= self._keep_at:
                self._link(run_files.checkpoint_path(steps))
                for _, path in run_files.list_checkpoints(self._folder)[: -self._config.learner.keep_checkpoints]:
                    path.unlink(missing_ok=True)
            if not self._config.evaluates and score is not None and (self._best is None or score > self._best):
                self._link(run_files.BEST_CHECKPOINT)
                self._best = score
            alike = evaluations.filter_by_actions(self._read_evaluations(), self._config.evaluate.actions)
            if finished and self._config.evaluates and steps not in evaluations.mean_by_steps(alike):
                self._link(Path(run_files.TO_EVALUATE, f"{steps}.pt"))
            elif self._evaluate_at is not None and steps >= self._evaluate_at:
                self._offer(steps)
        except (OSError, ConfigError) as error:
            log.warning("%s: no further name for the checkpoint of step %d: %s", self._folder, steps, error)
        self.plan(steps)

    def _rewind(self, steps: int) -> float | None:
        """Set aside what is of later steps; returns the score of the best checkpoint that is left.

        Policies go first: what an evaluator finds out about one of them from then on does not count.
        """
        files = [path for kind in NUMBERED_FOLDERS for path in (self._folder / kind).glob("*")]
        later = [path for path in files if evaluations.steps_of(path) > steps]
        best_at, best = self._best_score()
        if best_at > steps:
            later.append(self._folder / run_files.BEST_CHECKPOINT)
        for path in later:
            run_files.move_aside(path)
        with evaluations.table_lock(self._folder):
            rows = self._read_evaluations()
            if (own := [row for row in rows if row["agent_steps"] <= steps]) != rows:
                evaluations.write_evaluations(self._folder, own)
        if later or own != rows:
            log.warning(
                "the run continues at step %d: its evaluations of later steps are dropped, and the names of their "
                "checkpoints and videos end in .old now",
                steps,
            )
        return best if best_at <= steps else None

    def _read_evaluations(self) -> list[evaluations.Row]:
        """The evaluations so far; none if they cannot be read, which costs no training."""
        try:
            return evaluations.read_evaluations(self._folder)
        except ConfigError as error:
            log.warning("%s", error)
            return []

    def _best_score(self) -> tuple[float, float | None]:
        """Agent steps and score of the best checkpoint; infinite if it is damaged."""
        meters = Meters(self._config.env.tasks)
        try:
            if (saved := load_checkpoint(self._folder / run_files.BEST_CHECKPOINT)) is None:
                return -1, None
            meters.load(saved["statistics"])
            return int(saved["counters"]["agent_steps"]), meters.score
        except (CheckpointError, *UNREADABLE_ERRORS) as error:
            log.warning("%s", error)
            return math.inf, None

    def plan(self, steps: int) -> None:
        """Begin with the checkpoint that is due next after this step."""
        every, total = self._config.learner.checkpoint_every_steps, self._config.total_steps
        self._keep_at = (steps // every + 1) * every if every else None
        following = self._config.evaluate.next_step(steps, total)
        self._evaluate_at = None if following == total else following  # the last one is due when the run is finished

    def _offer(self, steps: int) -> None:
        if len(run_files.list_checkpoints(self._folder, run_files.TO_EVALUATE)) < MAX_WAITING:
            self._link(Path(run_files.TO_EVALUATE, f"{steps}.pt"))
        else:
            log.warning("step %d is not evaluated: %d policies wait for an evaluator", steps, MAX_WAITING)

    def _link(self, name: Path) -> None:
        (self._folder / name).parent.mkdir(exist_ok=True)
        with draft_file(self._folder / name, durable=True) as draft:
            try:
                os.link(self._folder / run_files.CHECKPOINT, draft)
            except OSError:
                shutil.copyfile(self._folder / run_files.CHECKPOINT, draft)
