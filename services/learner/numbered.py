"""Checkpoints under other names: by their number, to stay or to be evaluated, and the best.

    checkpoints/<agent_steps>.pt    every `learner.checkpoint_every_steps`; the newest `learner.keep_checkpoints` stay
    evaluate/<agent_steps>.pt       at the steps of `evaluate`; the evaluator removes them
    best/checkpoint.pt              of the best mean return of 100 episodes, unless the evaluator judges

They are hard links, so each costs no time; where a file system has none, copies.
"""

import logging
import os
import shutil
from pathlib import Path

from zerobeast.common.files import evaluations, run_files
from zerobeast.common.settings import RunConfig

log = logging.getLogger(__name__)

MAX_WAITING = 100  #: checkpoints that wait for an evaluator, which may not run at all


class NumberedCheckpoints:
    """Which checkpoints of a run get other names, and when.

    Args:
      config: of the run.
      steps: where it stands.
    """

    def __init__(self, config: RunConfig, steps: int) -> None:
        self._config, self._folder = config, config.folder
        self._evaluates = config.evaluate.following(0, config.total_steps) is not None
        self._plan(steps)

    def due(self, steps: int) -> bool:
        """Whether a checkpoint has to be saved at this step."""
        return any(at is not None and steps >= at for at in (self._keep_at, self._evaluate_at))

    def saved(self, steps: int, *, best: bool, finished: bool) -> None:
        """Give the checkpoint that was just saved its other names.

        Args:
          steps: of it.
          best: whether its mean return of 100 episodes is the best so far.
          finished: whether the run ends with it, so that it is evaluated in any case.
        """
        try:
            if self._keep_at is not None and steps >= self._keep_at:
                self._link(run_files.numbered(steps))
                for _, path in run_files.kept(self._folder)[: -self._config.learner.keep_checkpoints]:
                    path.unlink(missing_ok=True)
            if finished and self._evaluates and steps not in evaluations.scores(evaluations.read(self._folder)):
                self._link(Path(run_files.TO_EVALUATE, f"{steps}.pt"))
            elif self._evaluate_at is not None and steps >= self._evaluate_at:
                self._offer(steps)
            if best and not self._evaluates:
                self._link(run_files.BEST_CHECKPOINT)
        except OSError as error:
            log.warning("%s: no further name for the checkpoint of step %d: %s", self._folder, steps, error)
        self._plan(steps)

    def missed(self, steps: int) -> None:
        """Go on without the checkpoint that was due at this step, since it could not be written."""
        self._plan(steps)

    def _plan(self, steps: int) -> None:
        every, total = self._config.learner.checkpoint_every_steps, self._config.total_steps
        self._keep_at = (steps // every + 1) * every if every else None
        following = self._config.evaluate.following(steps, total)
        self._evaluate_at = None if following == total else following  # the last one is due when the run is finished

    def _offer(self, steps: int) -> None:
        if len(run_files.kept(self._folder, run_files.TO_EVALUATE)) < MAX_WAITING:
            self._link(Path(run_files.TO_EVALUATE, f"{steps}.pt"))
        else:
            log.warning("step %d is not evaluated: %d policies wait for an evaluator", steps, MAX_WAITING)

    def _link(self, name: Path) -> None:
        path, draft = self._folder / name, (self._folder / name).with_suffix(".new")
        path.parent.mkdir(exist_ok=True)
        draft.unlink(missing_ok=True)
        try:
            os.link(self._folder / run_files.CHECKPOINT, draft)
        except OSError:
            shutil.copyfile(self._folder / run_files.CHECKPOINT, draft)
        draft.replace(path)
