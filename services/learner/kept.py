"""What a run keeps in its folder while it is trained: settings, metrics, checkpoints. The first rank alone keeps it."""

from __future__ import annotations

import contextlib
import logging
from contextlib import ExitStack

from zerobeast.common.config.load import dump
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.settings import RunConfig
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.folder import claim
from zerobeast.services.learner.numbered import NumberedCheckpoints
from zerobeast.services.learner.recorder import Archive, Recorder
from zerobeast.services.learner.run import TrainingRun

log = logging.getLogger(__name__)


class Kept:
    """The folder of a run, which belongs to this learner until `resources` are closed.

    Raises:
      ConfigError: it cannot be written, or another process has it.
    """

    def __init__(self, config: RunConfig, resources: ExitStack) -> None:
        self._config, self._resources = config, resources
        self.checkpoints = Checkpoints(config.folder, resources.enter_context(claim(config.folder)))

    def begin(self, steps: int) -> Archive:
        """Go on after so many steps, 0 in a new run."""
        config = self._config
        if not (settings := config.folder / run_files.CONFIG).exists():  # `beast evaluate` reads them
            write_atomically(settings, dump(config))
        self._numbered = NumberedCheckpoints(config, steps)
        (config.folder / run_files.REACHED).unlink(missing_ok=True)
        recorder = Recorder(config.folder, steps)
        self._resources.callback(recorder.close)
        return Archive(self.checkpoints, recorder)

    def due(self, steps: int) -> bool:
        """Whether a checkpoint has to be saved at this step."""
        return self._numbered.due(steps)

    def reached(self, training: TrainingRun) -> bool:
        """Whether the run has reached `stop_at_return`: by any evaluation or, if there are none, in training."""
        goal, first = self._config.stop_at_return, evaluations.first_level(self._config.evaluate.levels)
        if goal is None:
            return False
        scores = [] if self._config.evaluates else [training.meters.score]
        if self._config.evaluates:
            with contextlib.suppress(ConfigError):  # if no file can be opened now, the next row reads it again
                scores += evaluations.scores(evaluations.read(self._config.folder), [first]).values()
        return any(score is not None and score >= goal for score in scores)

    def checkpoint(self, training: TrainingRun, now: float, *, last: bool, finished: bool) -> None:
        """Save the run.

        Raises:
          CheckpointError: it cannot be written, and it is the `last` one. Otherwise the page says so.
        """
        steps = training.trainer.counters.agent_steps
        try:
            training.checkpoint(now)
        except CheckpointError:
            self._numbered.plan(steps)
            if last:
                raise
        else:
            self._numbered.saved(steps, score=training.meters.score, finished=finished)

    def note_end(self, training: TrainingRun) -> None:
        """Note that the run has ended before its last step, if it has."""
        if training.ended:
            write_atomically(self._config.folder / run_files.REACHED, f"{self._config.stop_at_return}\n")
