"""What a run is made of: the queue and intake of its rollouts around a trainer, and what publishes its weights."""

from collections.abc import Callable
from dataclasses import dataclass, field

from zerobeast.common.errors import ConfigError
from zerobeast.common.service.base import Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import ServerPort, WeightsPublisher
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.nets import WeightsWriter
from zerobeast.services.learner.acting import Publishing, Unpublished, shared_writer
from zerobeast.services.learner.beginning import terms_of
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.parent import Parent
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast.services.learner.recorder import Archive
from zerobeast.services.learner.run import TrainingRun
from zerobeast.services.learner.update import Trainer


@dataclass
class Making:
    """Makes the runs of a learner: another one takes a run's place if no rollouts come from the actor that began it."""

    config: RunConfig
    service: Service  #: whose clock and hops they have
    make: Callable[..., Trainer]  #: (env, parent) -> trainer
    parent: Parent | None  #: what a new run begins with
    meters: Meters
    archive: Archive
    port: ServerPort  #: of their rollouts
    epoch: int  #: of the learner
    publisher: WeightsPublisher | None  #: of their weights; only the first rank publishes any
    _writer: WeightsWriter | None = field(default=None, init=False)

    def anew(self, env: EnvSpec) -> TrainingRun:
        """A new run in this environment, in place of the one before. Raises ConfigError as `run`."""
        self.close()
        return self.run(self.make(env, self.parent), SavedLedger())

    def run(self, trainer: Trainer, record: SavedLedger) -> TrainingRun:
        """A run with this trainer.

        Args:
          trainer: new or from a checkpoint.
          record: what became of its rollouts so far.

        Raises:
          ConfigError: the algorithm cannot learn under these settings.
        """
        settings, terms = self.config.learner, terms_of(self.config, trainer.env, trainer.policy)
        record.recover(trainer.recovered())
        queue = RolloutQueue(trainer.storage, settings.rows)
        in_step = self.config.deterministic
        if in_step and trainer.learning.credit != "after_step":
            raise ConfigError(f"algo {self.config.section} with deterministic: expected one with credit after_step")
        intake = Intake(self.port, self.epoch, settings.window, terms, queue, record, lock_step=in_step)
        publishing: Publishing = Unpublished(intake.acting)
        if self.publisher is not None:
            self._writer = shared_writer(self.config, trainer.algorithm, self.epoch)
            publishing = Publishing(self.publisher, self._writer, self.epoch, intake.acting)
        return TrainingRun(trainer, intake, self.service, publishing, self.meters, self.archive)

    def close(self) -> None:
        """Take back the weights that are shared with processes of this machine."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
