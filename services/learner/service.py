"""The learner's shell: rollouts in, weights out, and a run folder that a killed learner continues from.

One thread, one loop: receive what fits, learn from a batch if there is one, otherwise wait. The last update uses
only as many steps as the run still needs; then the learner writes the last weights and checkpoint and ends by itself,
unless learner.when_done lets it wait or stay.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from zerobeast.common.config.load import dump
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.health import figures
from zerobeast.common.health.verdict import DONE
from zerobeast.common.service.base import Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import Poller, ServerPort, WeightsPublisher, random_id
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.messages import Plane
from zerobeast.rl.acting.weights_inbox import shared_place
from zerobeast.rl.nets import WeightsWriter, pick_device, pick_dtype
from zerobeast.services.learner.acting import Publishing
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.folder import claim
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.numbered import NumberedCheckpoints, waiting
from zerobeast.services.learner.parent import Parent, read_parent
from zerobeast.services.learner.plane import RolloutPlane
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast.services.learner.recorder import Archive, Recorder
from zerobeast.services.learner.run import NOTHING_YET, TrainingRun, first_run, resumed, terms_of
from zerobeast.services.learner.update import Trainer

log = logging.getLogger(__name__)

PROGRESS_PERIOD_S = 60.0  #: between lines of the log about the progress


class Learner(Service):
    """Optimises a policy from the rollouts that actors push.

    Args:
      config: of the run; its folder is where the run continues from.
      instance: of the process.
      clock: monotonic seconds.
      make_trainer: makes the trainer, as the class does.
    """

    role = "learner"
    work = ("agent_steps", "updates")

    def __init__(
        self,
        config: RunConfig,
        instance: Instance,
        *,
        clock: Callable[[], float] = time.monotonic,
        make_trainer: Callable[..., Trainer] = Trainer,
    ) -> None:
        del instance  # there is one learner
        super().__init__(clock=clock)
        self.config = config
        self.training: TrainingRun | None = None
        self.meters = Meters(config.env.tasks)
        self._make_trainer = make_trainer
        self._parent: Parent | None = None  #: what a new run begins with
        self._plane: RolloutPlane | None = None  #: set by `open`
        self._epoch = random_id()
        self._writer: WeightsWriter | None = None
        self._is_kept = False  #: the last row and checkpoint are written
        self._waited_s = 0.0  #: for the next batch
        self._computes: dict[str, str] = {}  #: device and precision, for the health page
        self._has_more = False  #: whether there may be more to learn from
        self._log_at = self.started_at + config.learner.log_every_s
        self._checkpoint_at = self.started_at + config.learner.checkpoint_every_s
        self._progress_at = self.started_at + PROGRESS_PERIOD_S

    @property
    def plane(self) -> RolloutPlane:
        """The plane that receives rollouts; there is one from `open` on."""
        assert self._plane is not None, "open comes first"
        return self._plane

    def open(self) -> None:
        """Read the checkpoint, bind and, if there was a checkpoint, publish its weights at once."""
        config = self.config
        if not config.name:
            raise ConfigError(
                f"name: expected the name of the run; the learner keeps its files in {config.root}/<name>"
            )
        shared_place(config)
        self._device = pick_device(config.learner.device, "learner.device")
        dtype = pick_dtype(config.learner.precision, self._device)
        self._computes = {"device": str(self._device), "precision": str(dtype).removeprefix("torch.")}
        checkpoints = Checkpoints(config.folder, self.resources.enter_context(claim(config.folder)))
        trainer, record = resumed(config, checkpoints, self.meters, self._trainer)
        self._parent = None if trainer else read_parent(config)
        if not (settings := config.folder / run_files.CONFIG).exists():  # `beast evaluate` reads them
            write_atomically(settings, dump(config))
        steps = trainer.counters.agent_steps if trainer else 0
        self._numbered = NumberedCheckpoints(config, steps)
        (config.folder / run_files.REACHED).unlink(missing_ok=True)
        recorder = Recorder(config.folder, steps)
        self.resources.callback(recorder.close)
        self._archive = Archive(checkpoints, recorder)
        context = self.open_context(config.security)
        port = ServerPort(context, Plane.ROLLOUTS, config.learner.endpoint, epoch=self._epoch)
        self.resources.callback(port.close)
        self._publisher = WeightsPublisher(context, config.learner.endpoint)
        self.resources.callback(self._publisher.close)
        self.resources.callback(self._unshare)
        self.poller = Poller([port, self._publisher])
        self._plane = RolloutPlane(port, self._epoch, self._begin)
        if trainer:
            self._adopt(self._run(trainer, record))
            self._end_at_return()

    def take(self) -> None:
        """Receive, then learn if there is something to learn from."""
        self._publisher.welcome()
        self.plane.receive(self.clock())
        self._has_more = False
        if self.training is None:
            return
        if not self.training.ended:  # the return that ended it is its last one
            self.training.settle()
        if self.training.finished:
            self._rest(self.training)
        elif self.training.learn(self._waited_s):
            self._waited_s, self._has_more = 0.0, True
            if self._numbered.due(self.training.trainer.counters.agent_steps):
                self._checkpoint(self.clock(), must=False)
            if not self.config.evaluates:  # after each update, so that it depends on steps and not on the clock
                self._end_at_return()

    def waited(self, seconds: float) -> None:
        super().waited(seconds)
        self._waited_s += seconds
        self.meters.waited(seconds)

    def tick(self, now: float) -> None:
        """Write the metrics, the checkpoint and the line of the log that are due."""
        if now >= self._progress_at:
            self._progress_at = now + PROGRESS_PERIOD_S
            log.info("%s", " | ".join(figures.progress(self.config.total_steps, self.page).values()))
        if now >= self._log_at:
            self._log_at = now + self.config.learner.log_every_s
            self._record(now)
            if self.config.evaluates:
                self._end_at_return()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self.config.learner.checkpoint_every_s
            self._checkpoint(now, must=False)

    def deadline(self) -> float:
        """When the next row or checkpoint is due; at once while there may be more to learn from."""
        return 0.0 if self._has_more else min(self._log_at, self._checkpoint_at)

    def idle(self) -> bool:
        """Whether no actor is there, or all steps are done."""
        return not self.plane.peers or self._is_kept

    def drain(self) -> None:
        """Publish the last weights, say BYE, and write the last row and checkpoint."""
        if self.training is not None:
            self.training.publish()
        self.plane.farewell()
        self._keep()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last seconds, null what is not known yet."""
        return {
            "total_steps": self.config.total_steps,
            "finished": self._is_kept and self.training is not None and self.training.finished,
            "evaluations_waiting": waiting(self.config),
            **(self.training.page() if self.training else NOTHING_YET),
            **self._computes,
            **self.meters.page(self.clock()),
            "return_history": list(self.meters.episodes.history),
            **(self._plane.page() if self._plane else {}),
        }

    def _trainer(self, env: EnvSpec, parent: Parent | None = None) -> Trainer:
        return self._make_trainer(self.config, self._device, env, parent)

    def _run(self, trainer: Trainer, record: SavedLedger) -> TrainingRun:
        settings, terms = self.config.learner, terms_of(self.config, trainer.env, trainer.policy)
        record.recover(trainer.recovered())
        queue = RolloutQueue(trainer.storage, settings.batch_size)
        in_step = self.config.deterministic
        if in_step and trainer.learning.credit != "after_step":
            raise ConfigError(f"algo {self.config.section} with deterministic: expected one with credit after_step")
        intake = Intake(self.plane.port, self._epoch, settings.window, terms, queue, record, lock_step=in_step)
        self._writer = self._share(trainer)
        publishing = Publishing(self._publisher, self._writer, self._epoch, intake.acting)
        return TrainingRun(trainer, intake, self, publishing, self.meters, self._archive)

    def _share(self, trainer: Trainer) -> WeightsWriter | None:
        """Shared memory for weights that processes on this machine act with, in the formats of a broker on its CPU."""
        if (place := shared_place(self.config)) is None:
            return None
        net = trainer.algorithm.network()
        net.lower(pick_dtype(self.config.broker.precision, torch.device("cpu")))
        try:
            return WeightsWriter(place, net, self._epoch)
        except (OSError, ConfigError) as error:
            if self.config.deterministic:
                raise ConfigError(f"deterministic: no memory to share the weights: {error}") from error
            log.warning("weights travel by socket, also on this machine: no memory to share: %s", error)
            return None

    def _unshare(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin(self, theirs: Terms) -> Intake:
        """Set up a new run for its first actor. Raises ConfigError if that is impossible."""
        if self.training is not None:
            log.warning("no rollouts have come from the actor that began the run: another environment begins it anew")
            self.training, self._plane = None, RolloutPlane(self.plane.port, self._epoch, self._begin)
        self._unshare()
        begin = partial(self._trainer, parent=self._parent)
        intake = self._adopt(first_run(self.config, theirs, lambda env: self._run(begin(env), SavedLedger())))
        if self.training is not None and not self.training.trainer.counters.agent_steps:  # nor are rows in its store
            intake.begin = self._begin
        return intake

    def _adopt(self, training: TrainingRun) -> Intake:
        """Begin the run: publish the weights, and admit all actors that offer the same terms."""
        self.training, self._plane = training, training.intake
        training.publish()
        return training.intake

    def _end_at_return(self) -> None:
        """End the run once `stop_at_return` is reached: by any evaluation or, if there are none, in training."""
        goal, first = self.config.stop_at_return, evaluations.first_level(self.config.evaluate.levels)
        if goal is None or self.training is None:
            return
        scores = [] if self.config.evaluates else [self.meters.score]
        if self.config.evaluates:
            with contextlib.suppress(ConfigError):  # if no file can be opened now, the next row reads it again
                scores += evaluations.scores(evaluations.read(self.config.folder), [first]).values()
        self.training.ended |= any(score is not None and score >= goal for score in scores)

    def _rest(self, training: TrainingRun) -> None:
        """Exit, wait or stay, according to learner.when_done, now that all steps are done."""
        when_done = self.config.learner.when_done
        if when_done != "exit" and not self._is_kept:
            training.publish()
            self._keep()
        if when_done == "exit" or (when_done == "evaluated" and not waiting(self.config)):
            self.stop()

    def _keep(self) -> None:
        """Write the last row and the last checkpoint, once."""
        if not self._is_kept:
            now = self.clock()
            self._record(now)
            self._checkpoint(now, must=True)
            self._is_kept = True
            self._log_at = self._checkpoint_at = self._progress_at = math.inf
            if self.training is not None and self.training.finished:
                if self.training.ended:
                    write_atomically(self.config.folder / run_files.REACHED, f"{self.config.stop_at_return}\n")
                log.info("all %d %s", self.training.trainer.counters.agent_steps, DONE)

    def _record(self, now: float) -> None:
        if self.training is not None:
            self.training.record(self.report(), now)

    def _checkpoint(self, now: float, *, must: bool) -> None:
        """Save the run, once it has steps: a description that came in a HELLO alone must not bind the next learner.

        Raises:
          CheckpointError: it cannot be written, and it `must`: it is the last one. Otherwise the page says so.
        """
        if self.training is None or not (steps := self.training.trainer.counters.agent_steps):
            return
        try:
            self.training.checkpoint(now)
        except CheckpointError:
            self._numbered.plan(steps)
            if must:
                raise
        else:
            self._numbered.saved(steps, score=self.meters.score, finished=must and self.training.finished)
