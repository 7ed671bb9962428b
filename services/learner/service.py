"""The learner's shell: rollouts in, weights out, and a run folder that a killed learner continues from.

One thread, one loop: receive what fits, learn from a batch where one is there, otherwise wait. The last update uses
only as many steps as the run still needs; then the learner writes the last weights and checkpoint and ends by itself,
unless learner.when_done tells it to stay.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import Any

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import CheckpointError, ConfigError, RemoteProtocolError
from zerobeast.common.health import hops
from zerobeast.common.nets.precision import pick_device, pick_dtype
from zerobeast.common.nets.weights import flatten, layout_id
from zerobeast.common.service.base import Service
from zerobeast.common.service.entry import Instance
from zerobeast.common.transport import (
    MAX_FRAME_BYTES,
    Poller,
    ServerPort,
    WeightsPublisher,
    checksum,
    chunks,
    open_context,
    random_id,
)
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.services.learner.admission import Terms, mismatch, oversize
from zerobeast.services.learner.archive import Archive
from zerobeast.services.learner.folder import claim, keep_settings
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import Record
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.queue import Message, RolloutQueue, Rows
from zerobeast.services.learner.recorder import COLUMNS
from zerobeast.services.learner.update import Trainer, Update

log = logging.getLogger(__name__)


class Learner(Service):
    """Optimises a policy from the rollouts that actors push.

    Args:
      config: of the run; its folder is where the run continues from.
      instance: which process this is.
    """

    role = "learner"

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__(supervisor_pid=instance.supervisor_pid)
        self.config = config
        self.trainer: Trainer | None = None
        self.intake: Intake | None = None
        now = self.clock()
        self.meters = Meters(config.env.tasks)
        self._archive = Archive(config.folder)
        self._most_rows = max(config.actor.envs_per_group, config.learner.batch_size)  #: in a message
        self._epoch = random_id()
        self._record_at_start = Record.load({})
        self._published = -1  #: newest version that went out
        self._is_kept = False  #: the last row and checkpoint are written
        self._waited_s = 0.0  #: for the batch that comes next
        self._computes: dict[str, str] = {}  #: where and how, for the health page
        self._resources = contextlib.ExitStack()
        self._elapsed_at = now
        self._log_at = now + config.learner.log_every_s
        self._checkpoint_at = now + config.learner.checkpoint_every_s

    def open(self) -> None:
        """Read the checkpoint, bind and, where there was a checkpoint, publish its weights at once."""
        config = self.config
        if not config.name:
            raise ConfigError(
                f"name: expected the name of the run; the learner keeps its files in {config.root}/<name>"
            )
        self._device = pick_device(config.learner.device, "learner.device")
        dtype = pick_dtype(config.learner.precision, self._device)
        self._computes = {"device": str(self._device), "precision": str(dtype).removeprefix("torch.")}
        self._resources.enter_context(claim(config.folder))
        trainer = self._continued()
        keep_settings(config)
        self._resources.callback(self._archive.close)
        self._archive.open(trainer.counters.agent_steps if trainer else 0)
        context = open_context(config.security, self.role)
        self._resources.callback(context.term)
        port = ServerPort(context, Plane.ROLLOUTS, config.learner.endpoint, epoch=self._epoch)
        self._resources.callback(port.close)
        self._publisher = WeightsPublisher(context, config.learner.endpoint)
        self._resources.callback(self._publisher.close)
        self._poller = Poller([port, self._publisher])
        self.intake = Intake(port, self._epoch, config.learner.window, self._begin, self._record_at_start)
        if trainer:
            self.intake.start(*self._adopt(trainer, self._queue(trainer)))

    def poll(self, timeout_s: float) -> None:
        """Receive, then either learn or wait for more."""
        assert self.intake is not None, "open comes first"
        self._publisher.welcome()
        self.intake.receive(self.clock())
        settings = self.config.learner
        oldest = self._published - settings.max_policy_lag * settings.publish_every
        self.meters.finished(self.intake.settle(oldest), self.clock())
        if self.trainer is not None and not self.trainer.steps_left:
            self._rest(self.trainer, timeout_s)
        elif self.trainer is not None and (rows := self.intake.take(self.clock())) is not None:
            self._learn(self.trainer, self.intake, rows)
        else:
            waited_s = self.wait(self._poller, timeout_s)
            self._waited_s += waited_s
            self.meters.waited(waited_s, self.clock())

    def tick(self, now: float) -> None:
        """Write the metrics and the checkpoint that are due."""
        if now >= self._log_at:
            self._log_at = now + self.config.learner.log_every_s
            self._record(now)
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self.config.learner.checkpoint_every_s
            with contextlib.suppress(CheckpointError):  # the page says so; only the last one has to succeed
                self._checkpoint(now)

    def deadline(self) -> float:
        """When the next row or checkpoint is due."""
        return min(self._log_at, self._checkpoint_at)

    def idle(self) -> bool:
        """Whether no actor is there, or all steps are done."""
        return self.intake is None or not self.intake.peers or self._is_kept

    def drain(self) -> None:
        """Leave the last weights, the last row and the last checkpoint."""
        if self.trainer is not None:
            self._publish(self.trainer)
        if self.intake is not None:
            self.intake.farewell()
        self._keep()

    def close(self) -> None:
        """Close files and sockets."""
        self._resources.close()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last seconds, null what is not known yet."""
        trainer, intake = self.trainer, self.intake
        counters = trainer.counters if trainer else None
        return {
            "agent_steps": counters.agent_steps if counters else 0,
            "env_frames": trainer.env_frames if trainer else 0,
            "total_steps": self.config.total_steps,
            "updates": counters.updates if counters else 0,
            "optimizer_steps": counters.optimizer_steps if counters else 0,
            "nonfinite_updates": counters.nonfinite_updates if counters else 0,
            "policy_version": max(self._published, 0),
            **self._computes,
            **self.meters.page(self.clock()),
            "return_history": list(self.meters.episodes.history),
            **(intake.page() if intake else {}),
            **self._archive.report(self.clock()),
        }

    def _continued(self) -> Trainer | None:
        """The trainer that the run's checkpoint describes, or None where there is no checkpoint.

        Raises:
          CheckpointError: it is not this run's.
        """
        path = self._archive.checkpoints.path
        saved = self._archive.checkpoints.load()
        if saved is None:
            return None
        try:
            env = EnvSpec.from_wire(saved["env"])
            algo = saved["config"]["algo"]
            self.meters.load(saved["statistics"])
            self._record_at_start = Record.load(saved.get("rollouts", {}))
        except (RemoteProtocolError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}: the checkpoint's entries are unreadable: {error!r}") from error
        wanted = self.config
        for name, theirs, ours in (("env.id", env.env_id, wanted.env.id), ("algo", algo, wanted.algo)):
            if theirs != ours:
                raise CheckpointError(
                    f"{path}: the checkpoint was made with {name} {theirs}, this run has {ours}: "
                    f"use another name, or start afresh"
                )
        trainer = Trainer(self.config, self._device, env)
        trainer.load(path, saved)
        log.info("continuing %s at agent step %d", path.parent, trainer.counters.agent_steps)
        return trainer

    def _begin(self, theirs: Terms) -> tuple[Terms, RolloutQueue]:
        """Set a new run up for the environment of the first actor. Raises ConfigError where that cannot be."""
        asked = self.config.env.id
        if theirs.env.env_id not in self.config.env.tasks:
            raise ConfigError(f"env.env_id is {theirs.env.env_id}, this run has {asked}")
        policy = theirs.policy or PolicySpec(n_logits=1, core_size=0)
        unbuilt = Terms(theirs.env, theirs.policy, self.config.learner.unroll_length, self._most_rows)
        row_bytes = rollout_record(theirs.env, policy, unbuilt.unroll_length).row_bytes
        if sentence := mismatch(theirs, unbuilt) or oversize(theirs, row_bytes, MAX_FRAME_BYTES):
            raise ConfigError(sentence)
        try:
            trainer = Trainer(self.config, self._device, theirs.env.among(asked))
            queue = self._queue(trainer)
        except (RuntimeError, ValueError, MemoryError) as error:  # whatever torch says of shapes that a peer made up
            raise ConfigError(f"{asked}: the network cannot learn from it: {error}") from error
        if sentence := mismatch(theirs, self._terms(trainer)):
            raise ConfigError(sentence)
        return self._adopt(trainer, queue)

    def _adopt(self, trainer: Trainer, queue: RolloutQueue) -> tuple[Terms, RolloutQueue]:
        """Make a trainer this run's, publish its weights, and return what actors have to offer."""
        self.trainer = trainer
        self._publish(trainer)
        return self._terms(trainer), queue

    def _queue(self, trainer: Trainer) -> RolloutQueue:
        return RolloutQueue(trainer.storage, self.config.learner.batch_size)

    def _terms(self, trainer: Trainer) -> Terms:
        return Terms(trainer.env, trainer.policy, self.config.learner.unroll_length, self._most_rows)

    def _learn(self, trainer: Trainer, intake: Intake, rows: Rows) -> None:
        queue, taken_at = intake.queue, self.clock()
        assert queue is not None, "it gave these rows"
        version = trainer.counters.policy_version
        update = trainer.update(rows, queue.tasks)
        messages = queue.release()
        if update.learned.changed and trainer.counters.policy_version % self.config.learner.publish_every == 0:
            self._publish(trainer)
        intake.use(messages, len(rows), learned=bool(update.learned.steps) or not update.learned.skipped)
        self.meters.updated(update, version, self.clock())
        self.meters.finished(messages, self.clock())
        self._time(update, messages, taken_at)

    def _rest(self, trainer: Trainer, timeout_s: float) -> None:
        """Do what learner.when_done says, now that all steps are done."""
        if self.config.learner.when_done == "exit":
            self.stop()
        elif self._is_kept:
            time.sleep(timeout_s)
            return
        else:
            self._publish(trainer)
            self._keep()
        log.info("all %d agent steps are done", trainer.counters.agent_steps)

    def _keep(self) -> None:
        """Write the last row and the last checkpoint, once."""
        if not self._is_kept:
            now = self.clock()
            self._record(now)
            self._checkpoint(now)
            self._is_kept = True
            self._log_at = self._checkpoint_at = math.inf

    def _time(self, update: Update, messages: list[Message], taken_at: float) -> None:
        self.hops.add("learner_wait", self._waited_s)
        self._waited_s = 0.0
        self.hops.add("update", update.seconds)
        for message in messages:
            if message.fate == "used":
                self.hops.add("rollout_queue", taken_at - message.at)

    def _publish(self, trainer: Trainer) -> None:
        version = trainer.counters.policy_version
        if version == self._published:
            return
        started = self.clock()
        snapshot = flatten(trainer.net)
        body = (version, layout_id(trainer.net), snapshot.nbytes, checksum(snapshot), len(chunks(snapshot)))
        self._publisher.publish(Header(Kind.WEIGHTS, 0, epoch=self._epoch, seq=version, body=body), snapshot)
        self._published = version
        self.hops.add("publish", self.clock() - started)

    def _record(self, now: float) -> None:
        """Write a row, once anything was learned."""
        trainer = self.trainer
        if trainer is None or self.meters.last is None:
            return
        self._book_elapsed(trainer, now)
        page = self.report()
        page["elapsed_s"] = round(trainer.counters.elapsed_s, 3)
        page["env_frames_per_s"] = round(page["agent_steps_per_s"] * trainer.env.frame_skip, 1)
        for hop in ("rollout_queue", "learner_wait", "publish"):
            seconds = hops.recent([self.page], hop).mean_s
            page[f"{hop}_ms"] = None if seconds is None else round(1000 * seconds, 3)
        row = {name: page[name] for name in COLUMNS}
        self._archive.record(row, self.meters.losses(), self.meters.lags(), page["mean_return_100_by_task"])

    def _checkpoint(self, now: float) -> None:
        if self.trainer is not None:
            self._book_elapsed(self.trainer, now)
            rollouts = self.intake.record().state() if self.intake else {}
            self._archive.save({**self.trainer.state(), "statistics": self.meters.state(), "rollouts": rollouts}, now)

    def _book_elapsed(self, trainer: Trainer, now: float) -> None:
        trainer.counters.elapsed_s += now - self._elapsed_at
        self._elapsed_at = now
