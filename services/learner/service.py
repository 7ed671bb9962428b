"""The learner's shell: rollouts in, weights out, and a run folder that a killed learner continues from.

One loop: receive what fits, learn from a batch if there is one, otherwise wait. If learning or writing takes long,
another thread answers (`attend`). The last update uses only as many steps as the run still needs; then the learner
writes the last weights and checkpoint and ends by itself, unless learner.when_done lets it wait or stay.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from zerobeast.common.config.process import Instance
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import run_files
from zerobeast.common.health import figures
from zerobeast.common.service.base import DRAIN_LIMIT_S, LINGER_S, Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import random_id
from zerobeast.rl.acting.weights_inbox import shared_place
from zerobeast.rl.nets import pick_dtype
from zerobeast.rl.ops import meeting, ranks
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.checkpoint import pack_state, unpack_state
from zerobeast.services.learner.coordination import (
    CHECKPOINT,
    ROW,
    Act,
    Agreement,
    Rank,
    RankCoordinator,
    SoloCoordinator,
    Vote,
    read_on_first_rank,
)
from zerobeast.services.learner.folder import UNWRITTEN_PAGE, RunFolder, link_store
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.parent import Parent, read_parent
from zerobeast.services.learner.plane import LearnerSockets, RolloutPlane
from zerobeast.services.learner.recorder import next_row
from zerobeast.services.learner.startup import resume_run, start_run
from zerobeast.services.learner.training_run import EMPTY_PAGE, RunMaker, TrainingRun
from zerobeast.services.learner.update import Trainer

log = logging.getLogger(__name__)


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
    sockets: LearnerSockets  #: receives rollouts from `open` on

    def __init__(
        self,
        config: RunConfig,
        instance: Instance,
        *,
        clock: Callable[[], float] = time.monotonic,
        make_trainer: Callable[..., Trainer] = Trainer,
    ) -> None:
        super().__init__(clock=clock)
        self.config = config
        self.training: TrainingRun | None = None
        self._rank = Rank.of(config, instance, os.environ)
        self._coordinator = RankCoordinator() if config.learner.ranks > 1 else SoloCoordinator()
        self.meters = Meters(config.env.tasks)
        self._make_trainer = make_trainer
        self._epoch = random_id()
        self._folder: RunFolder | None = None  #: the run's folder, on the first rank
        self._shares = 0  #: what the first rank is about to write, as in `Vote`
        self._is_over = self._is_done = False  #: no further step is taken; nothing is left to be learned
        self._is_kept = False  #: the last row and checkpoint are written
        self._stays_until = math.inf
        self._waited_s = 0.0  #: for the next batch
        self._computes: dict[str, str] = {}  #: device and precision, for the health page
        self._has_more = False  #: whether there may be more to learn from
        self._log_at = next_row(self.started_at, self.started_at, config.learner.log_every_s)
        self._checkpoint_at = self.started_at + config.learner.checkpoint_every_s

    def open(self) -> None:
        """Read the checkpoint, bind and, if there was a checkpoint, publish its weights at once."""
        config = self.config
        if not config.name:
            raise ConfigError(path="name", expected=f"the name of the run, whose files are in {config.root}/<name>")
        shared_place(config)
        self.resources.callback(register_optimizer_step_post_hook(lambda *_: self.note_progress()).remove)
        device = self._rank.device(config, os.environ)
        dtype = pick_dtype(config.learner.precision, device)
        self._computes = {"device": str(device), "precision": str(dtype).removeprefix("torch.")}
        if self._coordinator.several:
            self.resources.callback(meeting.leave)
            self._rank.join(config, device.type, lambda: self.stopping, os.environ)
        self._folder = None if self._rank.number else RunFolder(config, self.resources, self.computing)
        link_store(config)
        saved = read_on_first_rank(lambda: self._folder.checkpoints.load() if self._folder else None)
        make, parent = partial(self._make_trainer, config, device), None
        trainer, record = resume_run(config, config.folder / run_files.CHECKPOINT, saved, self.meters, make)
        if not trainer and config.parent.run:
            parent = Parent.of(config, read_on_first_rank(lambda: read_parent(config) if self._folder else None))
        if self._folder:
            self._folder.begin(trainer.counters.agent_steps if trainer else 0)
        context = self.open_context(config.security)
        self.sockets = LearnerSockets(context, self._rank.endpoint, self._epoch, self._begin, self.resources)
        self._maker = RunMaker(config, self, make, parent, self.meters, self.sockets, self._epoch)
        self.resources.callback(self._maker.close)
        self.poller = self.sockets.poller
        if trainer:
            self._adopt(self._maker.run(trainer, record))
            self._end_at_return()

    def take(self) -> None:
        """Receive, then learn if there is something to learn from."""
        self.sockets.turn(self.clock())
        self._has_more = False
        if self._is_over:
            self._rest()
        else:
            self._advance()

    def _advance(self) -> None:
        """Do what all ranks can do next, if there is anything."""
        vote = self.training.vote(self._coordinator) if self.training else Vote()
        started = self.clock()
        agreed = self._coordinator.agree(vote._replace(stops=int(self.stopping), shares=self._shares), started)
        if self._coordinator.several:
            self.count_wait(self.clock() - started)
        self._has_more = agreed is not None or self._coordinator.votes
        if agreed is not None:
            self._do(agreed)

    def _do(self, agreed: Agreement) -> None:
        """Do what all ranks do now."""
        training = self.training
        if agreed.act is Act.SHARE:
            whole = agreed.shares == CHECKPOINT
            if self._shares <= agreed.shares:  # otherwise more has become due since the vote
                self._shares = 0
            self.share_with_ranks(whole=whole)
            with contextlib.nullcontext() if self._folder else self.computing:  # the others wait for its disk
                ranks.run_patiently(lambda: self._write(self.clock(), row=True, checkpoint=whole), "writing")
        elif agreed.act in (Act.END, Act.STOP):
            self._is_over, self._is_done = True, agreed.act is Act.END and not (training and training.fault)
            self.stopping |= agreed.act is Act.STOP
        elif training is not None:
            training.act(agreed, self._waited_s)
            self._waited_s = 0.0
            if self._folder:
                training.judge_losses()
            if self._folder and self._folder.due(training.trainer.counters.agent_steps, self.clock() - self.loop_at):
                self._checkpoint_at = -math.inf
            if not self.config.evaluates:  # after each update, so that it depends on steps and not on the clock
                self._end_at_return()

    def count_wait(self, seconds: float) -> None:
        super().count_wait(seconds)
        self._waited_s += seconds
        self.meters.count_wait(seconds)

    def tick(self, now: float) -> None:
        """Write the metrics, and the checkpoint with a line of the log, that are due."""
        if now >= self._log_at:
            self._log_at = next_row(now, self.started_at, self.config.learner.log_every_s)
            self._due(ROW, now)
            if self.config.evaluates:
                self._end_at_return()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self.config.learner.checkpoint_every_s
            log.info("%s", " | ".join(figures.format_progress(self.config.total_steps, self.page).values()))
            self._due(CHECKPOINT, now)

    def deadline(self) -> float:
        """When the next row or checkpoint is due; at once while there may be more to learn from."""
        if self._has_more:
            return 0.0
        return min(self._log_at, self._checkpoint_at, math.inf if self._is_over else self._coordinator.vote_at)

    def idle(self) -> bool:
        """Whether no actor is there, or all steps are done."""
        return not self.sockets.plane.peers or self._is_kept

    def attend(self) -> bool:
        """Answer actors and subscribers; or end, if the checkpoint has all but the update that is under way.

        A rank ends with the others, after the update: they would lose what they have learned if it left alone.
        """
        super().attend()
        if (training := self.training) is None or self.state != "ready":
            return False
        saved = not self._coordinator.several and training.saved_updates == training.trainer.counters.updates
        if ends := self.stopping and saved:
            log.info("ended at once: the checkpoint has all but an update that was under way")
            self.sockets.plane.farewell()
            self.close()
        else:
            self.sockets.turn(self.clock())
        return ends

    def drain(self) -> None:
        """Send BYE, publish the last weights, and write the last row and checkpoint."""
        until = self.clock() + DRAIN_LIMIT_S
        while self._coordinator.several and not self._is_over:
            if self.clock() > until:
                self.sockets.plane.farewell()
                raise PeerLost("another rank does not answer: the last checkpoint is the one that was written before")
            self._advance()
        self.sockets.plane.farewell()
        self._keep()
        if self.training is not None and self.training.fault:
            raise BeastError(self.training.fault)

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last seconds, null what is not known yet."""
        return {
            "total_steps": self.config.total_steps,
            "finished": self._is_kept and self._finished,
            "rank": self._rank.number,
            **(self.training.page() if self.training else EMPTY_PAGE),
            **(self._folder.report(self.clock()) if self._folder else UNWRITTEN_PAGE),
            **self._computes,
            **self.meters.page(self.clock()),
            "return_history": list(self.meters.episodes.history),
            **({} if self.state == "starting" else self.sockets.plane.page()),
        }

    def _begin(self, theirs: Terms) -> Intake:
        """Set up a new run for its first actor. Raises ConfigError if that is impossible."""
        if self.training is not None:
            log.warning("no rollouts have come from the actor that began the run: another environment begins it anew")
            self.training, self.sockets.plane = None, RolloutPlane(self.sockets.port, self._epoch, self._begin)
        intake = self._adopt(start_run(self.config, theirs, self._maker.anew))
        if self.training is not None and not self.training.trainer.counters.agent_steps:  # nor are rows in its store
            intake.begin = self._begin
        return intake

    def _adopt(self, training: TrainingRun) -> Intake:
        """Begin the run: publish the weights, and admit all actors that offer the same terms."""
        self.training, self.sockets.plane = training, training.intake
        training.publish()
        return training.intake

    def _end_at_return(self) -> None:
        """End the run once `stop_at_return` is reached."""
        if self._folder and self.training is not None:
            self.training.ended |= self._folder.has_reached_return(self.training)

    def _rest(self) -> None:
        """Exit, wait or stay, according to learner.when_done, now that all steps are done."""
        when_done = self.config.learner.when_done
        if when_done != "exit":
            self._keep()
        lingers = (self._folder and self._folder.awaits_evaluation(self.clock())) or self.clock() < self._stays_until
        if when_done == "exit" or (self.training and self.training.fault) or (when_done == "evaluated" and not lingers):
            self.stop()

    def share_with_ranks(self, *, whole: bool) -> None:
        """Give the first rank what it keeps of all others; `whole`: for a checkpoint, and not only for a row."""
        training = self.training
        own = training.part(whole=whole) if training is not None and ranks.rank() else {}
        own["weights"] = training.trainer.checksum() if training is not None and whole else None
        parts = [unpack_state(part) for part in ranks.gather_bytes(pack_state(own), "what the first rank keeps")]
        if training is not None and not ranks.rank():
            training.take_parts(parts[1:])
        if training is not None:
            training.compare([part["weights"] for part in parts])

    def _keep(self) -> None:
        """Publish the last weights, and write the last row and the last checkpoint, once."""
        if self._is_kept:
            return
        if self.training is not None:
            self.training.publish()
        self.share_with_ranks(whole=True)
        self._write(self.clock(), row=True, checkpoint=True, last=True)
        self._is_kept, self._stays_until = True, self.clock() + LINGER_S
        self._log_at = self._checkpoint_at = math.inf
        if self.training is not None and self._finished:
            if self._folder:
                self._folder.note_end(self.training)
            self.outcome = f"all {self.training.trainer.counters.agent_steps} agent steps are done"
            log.info("%s", self.outcome)

    @property
    def _finished(self) -> bool:
        """Whether nothing is left to be learned."""
        return self._is_done or (self.training is not None and self.training.finished)

    def _due(self, what: int, now: float) -> None:
        """Write a ROW or a CHECKPOINT, with several ranks once the others have shared what belongs to it."""
        if self._coordinator.several:
            self._shares = max(self._shares, what if self._folder else 0)
        else:
            self._write(now, row=what == ROW, checkpoint=what == CHECKPOINT)

    def _write(self, now: float, *, row: bool = False, checkpoint: bool = False, last: bool = False) -> None:
        """Write to the folder if there are steps. Raises CheckpointError if the `last` checkpoint cannot be written."""
        if self._folder is None or self.training is None:
            return
        if row:
            record = self.training.record(self.report(), now, final=last and self._finished)
            self._folder.record(self.training, record)
            self._log_at = next_row(self.clock(), self.started_at, self.config.learner.log_every_s)
        if checkpoint and self.training.trainer.counters.agent_steps:  # a HELLO alone must not bind the next learner
            self._folder.checkpoint(self.training, now, last=last, finished=last and self._finished)
            self._checkpoint_at = self.clock() + self.config.learner.checkpoint_every_s  # however slow the disk is
