"""A learner's run, from its beginning to the end of its process: queue, intake and publishing around a trainer."""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.health import hops
from zerobeast.common.service.base import Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.episodes import Episode, LostEpisode, is_lost, to_entry
from zerobeast.rl.nets import WeightsWriter
from zerobeast.rl.ops import ranks
from zerobeast.rl.protocol import Learned
from zerobeast.services.learner.acting import VersionPublisher, shared_writer
from zerobeast.services.learner.coordination import Act, Agreement, SoloCoordinator, Vote, read_on_first_rank
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.parent import Parent
from zerobeast.services.learner.plane import LearnerSockets
from zerobeast.services.learner.queue import RolloutQueue, Rows
from zerobeast.services.learner.recorder import COLUMNS, Record, events_of
from zerobeast.services.learner.startup import terms_of
from zerobeast.services.learner.update import Trainer

log = logging.getLogger(__name__)

COUNTS = ("agent_steps", "updates", "optimizer_steps", "nonfinite_updates")  #: of the trainer, for the health page
#: the page before a run has begun
EMPTY_PAGE = dict.fromkeys((*COUNTS, "env_frames", "policy_version", "drifts"), 0)


class TrainingRun:
    """Learns from what the intake takes, and publishes versions; has the metrics and the state that `RunFolder` writes.

    Args:
      trainer: of the run.
      intake: of its rollouts.
      service: whose clock and hops these are.
      versions: of its weights.
      meters: of what is learned.
    """

    def __init__(
        self, trainer: Trainer, intake: Intake, service: Service, versions: VersionPublisher, meters: Meters
    ) -> None:
        self.trainer, self.intake, self.meters = trainer, intake, meters
        self._service, self._versions = service, versions
        self._rule = trainer.config.sync.parsed
        self._elapsed_at = service.started_at
        self._began_at = trainer.counters.agent_steps
        self.saved_updates = trainer.counters.updates  #: those in the newest checkpoint
        self.ended = False  #: before all steps, since `stop_at_return` is reached or for a fault
        self.fault = ""  #: that has ended it, as a sentence
        self._rows: Rows | None = None  #: that are offered
        self._taken_at = 0.0
        self._plays = 1 + zlib.crc32(repr(trainer.env.to_wire()).encode())  #: for `Vote`
        self._others: list[dict[str, Any]] = []  #: what the ranks after the first have shared last
        learner = trainer.config.learner
        self._lag = learner.max_policy_lag * learner.publish_every  #: versions that a rollout may be old
        self._lag_counts = trainer.learning.credit == "after_step" and self._rule.name == "always"
        self._first_version = trainer.counters.policy_version
        self._rows_used = 0  #: since this start
        self._drifts = 0  #: checkpoints at which ranks had other weights
        meters.pace = trainer.learning.pace
        intake.progress = self._progress
        self._bound_lag()

    def _progress(self) -> float:
        """What environments follow, from 0 to 1."""
        steps, config = self.trainer.counters.agent_steps, self.trainer.config
        return min(1.0, steps / config.total_steps) if config.env.progress is None else config.env.progress

    def _bound_lag(self) -> None:
        """Have no more rollouts begun than are used before they are too old, at the rows per version so far."""
        version = self.trainer.counters.policy_version
        versions = version - self._first_version
        per_version = self._rows_used / versions if versions else self.intake.queue.batch_size
        if self._lag_counts:
            self.intake.usable, self.intake.version = (self._lag + 1) * per_version, version

    @property
    def finished(self) -> bool:
        """Whether all steps of the run were added, and nothing more is to be learned from them."""
        return not self.fault and (self.ended or (not self.trainer.steps_left and not self.trainer.learning.due))

    def judge_losses(self) -> None:
        """End the run if too many episodes are lost: what is learned from the rest is not of this environment."""
        self.fault = self.fault or self.meters.lost.excess(self.trainer.config.learner.max_lost_episodes)
        self.ended |= bool(self.fault)

    def drop_stale_rollouts(self) -> None:
        """Drop rollouts whose policy is too old; an algorithm with a replay learns from any.

        Unless every version acts, `sync.rule` decides how old a policy may be, and nothing is dropped here.
        """
        if self._rows is not None or self.ended:  # the return that ended it is its last one
            return
        self._bound_lag()
        oldest = self._versions.version - self._lag if self._lag_counts else 0
        self.meters.count_finished(self.intake.drop_stale(oldest), self.trainer.counters.agent_steps)

    def vote(self, coordinator: SoloCoordinator) -> Vote:
        """What could be done next: the step that is due, or else the next batch."""
        self.drop_stale_rollouts()
        trainer, due = self.trainer, self.trainer.learning.due and not self.ended
        if trainer.steps_left and not self.ended and self._rows is None and coordinator.wants_rows(due=due):
            self._taken_at = self._service.clock()
            self._rows = self.intake.take(self._taken_at)
        return Vote(
            due=int(due),
            rows=0 if self._rows is None else len(self._rows),
            ends=int(self.finished or bool(self.fault)),
            recovered=trainer.uncounted,
            env=self._plays if self.intake.begin is None else 0,
        )

    def act(self, agreed: Agreement, waited_s: float) -> None:
        """Take the step that is due, or the batch and the step that it makes due at once."""
        if agreed.act is Act.COUNT:  # perhaps before all ranks have begun
            self.trainer.count_recovered(agreed.recovered)
            return
        if not self.trainer.alike:
            self._align()
        if agreed.act is Act.STEP:
            self._step()
        elif agreed.act is Act.ADD:
            self._add(agreed, waited_s)

    def _add(self, agreed: Agreement, waited_s: float) -> None:
        learning, rows, queue = self.trainer.learning, self._rows, self.intake.queue
        assert rows is not None, "which were offered"
        rows, self._rows = rows[: agreed.rows], None
        queue.shorten(len(rows))
        self._service.hops.add("learner_wait", waited_s)
        started = self._service.clock()
        with self._service.computing:
            added = self.trainer.add(rows, queue.tasks, queue.origins)
        added_s = self._service.clock() - started
        self.meters.count_batch(added, self.trainer.counters.policy_version, added_s)
        at_once = learning.credit == "after_store"
        learned = self._step(added_s) if learning.due and not at_once else None
        self._measure(rows)
        finite = learned is None or bool(learned.steps) or not learned.skipped
        self._acknowledge(len(rows), learned=finite)

    def _step(self, added_s: float = 0.0) -> Learned:
        """Take a step, and publish the policy that acts now, if that is due."""
        trainer, data_waits, started = self.trainer, self.intake.queue.ready, self._service.clock()
        with self._service.computing:
            learned = trainer.step()
        seconds = self._service.clock() - started
        if data_waits:
            self.meters.count_delay(seconds)
        if learned.changed and trainer.counters.policy_version % trainer.config.learner.publish_every == 0:
            self.publish()
        self.meters.count_update(learned, seconds, self._service.clock())
        self._service.hops.add("update", added_s + seconds)
        return learned

    def _acknowledge(self, rows: int, *, learned: bool) -> None:
        """Give back the credit of the rows that were taken."""
        self.trainer.wait()
        self._rows_used += rows
        messages = self.intake.use(rows, learned=learned)
        self.meters.count_finished(messages, self.trainer.counters.agent_steps)
        for message in messages:
            if message.fate == "used":
                self._service.hops.add("rollout_queue", self._taken_at - message.at)

    def _measure(self, rows: Rows) -> None:
        """Announce to the processes that act how far the policy has moved from theirs, measured on these rollouts."""
        if self._rule.measured:
            acting = self.intake.queue.acting
            with self._service.computing:
                divergence = self.trainer.divergence()
            self.intake.acting.measure(acting, rows["policy_version"], divergence)
            self._versions.tell(self.trainer.counters.agent_steps)

    def publish(self) -> None:
        """Publish the weights, unless this version is published already."""
        started, version = self._service.clock(), self.trainer.counters.policy_version
        if version == self._versions.version:
            return
        self._versions.publish(self.trainer.net, version)
        self._service.hops.add("publish", self._service.clock() - started)

    def page(self) -> dict[str, Any]:
        """How far the run is: the entries of NOTHING_YET, and more."""
        counts = {name: getattr(self.trainer.counters, name) for name in COUNTS}
        return {
            **counts,
            "env_frames": self.trainer.env_frames,
            "policy_version": self._versions.version,
            "drifts": self._drifts,
            **self.intake.acting.page(self._versions.version),
            "sync_bytes": self.intake.acting.syncs * self._versions.n_bytes,
        }

    def record(self, page: dict[str, Any], now: float, *, final: bool = False) -> Record | None:
        """The next row of metrics, once anything was learned or, if `final`, any step was added; None before."""
        if self.meters.last is None and not (final and self.trainer.counters.agent_steps > self._began_at):
            return None
        self._book_elapsed(now)
        page["elapsed_s"] = round(self.trainer.counters.elapsed_s, 3)
        page["env_frames_per_s"] = round(page["agent_steps_per_s"] * self.trainer.env.frame_skip, 1)
        for hop in ("rollout_queue", "learner_wait", "publish"):
            seconds = hops.merge_recent([self._service.page], hop).mean_s
            page[f"{hop}_ms"] = None if seconds is None else round(1000 * seconds, 3)
        row = {name: page[name] for name in COLUMNS if name in page}
        row |= self.meters.episodes.infos
        losses, lags = self.meters.losses(), self.meters.lag.histogram()
        ended = [(steps, task, one) for steps, task, one in self.meters.take_ended() if isinstance(one, Episode)]
        return Record(row, losses, lags, events_of(page), ended, self.meters.lost.reason)

    def state(self, now: float) -> dict[str, Any]:
        """All that the run needs to go on, for a checkpoint."""
        self._book_elapsed(now)
        record = self.intake.record()
        for other in self._others:
            record = record.merge(SavedLedger.load(other["rollouts"]))
        state = {**self.trainer.state(), "statistics": self.meters.state(), "rollouts": record.state()}
        if self._others:
            state["ranks"] = [{"learning": other["learning"], "rng": other["rng"]} for other in self._others]
        return state

    def part(self, *, whole: bool) -> dict[str, Any]:
        """What the first rank keeps of this one since the last call; if `whole`, all that a checkpoint has of it."""
        ended = [[steps, task, *to_entry(episode)] for steps, task, episode in self.meters.take_ended()]
        state = {"rollouts": self.intake.record().state(), **self.trainer.own_state()} if whole else {}
        rows, self.meters.lost.rows = self.meters.lost.rows, 0
        return {"episodes": ended, "rows": rows, **state}

    def compare(self, checksums: list[int | None]) -> None:
        """Have all ranks go on with the weights of the first one if theirs have become others."""
        if None in checksums or len(set(checksums)) == 1:
            return
        if not self._drifts:
            log.warning("ranks have computed different weights, and go on with those of rank 0: %s", checksums)
        self._drifts += 1
        self._align()

    def _align(self) -> None:
        """Give all ranks what the first one has learned."""
        self.trainer.follow(read_on_first_rank(self.trainer.shared_state) or {})

    def take_parts(self, parts: list[dict[str, Any]]) -> None:
        """Take what the other ranks share, on the first one."""
        for part in parts:
            self.meters.lost.rows += part.get("rows", 0)
            for steps, task, *one in part.get("episodes", ()):
                if is_lost(one):
                    self.meters.lose(steps, task, LostEpisode(*one))
                else:
                    self.meters.count(steps, task, Episode(*one))
        self._others = [part for part in parts if "rollouts" in part]

    def _book_elapsed(self, now: float) -> None:
        self.trainer.counters.elapsed_s += now - self._elapsed_at
        self._elapsed_at = now


@dataclass
class RunMaker:
    """Makes the runs of a learner: another one takes a run's place if no rollouts come from the actor that began it."""

    config: RunConfig
    service: Service  #: whose clock and hops they have
    make: Callable[..., Trainer]  #: (env, parent) -> trainer
    parent: Parent | None  #: what a new run begins with
    meters: Meters
    sockets: LearnerSockets  #: rollouts and weights; only the first rank publishes any
    epoch: int  #: of the learner
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
        record.recover(trainer.recover_rows())
        queue = RolloutQueue(trainer.storage, settings.rows)
        in_step = self.config.deterministic
        if in_step and trainer.learning.credit != "after_step":
            raise ConfigError(f"algo {self.config.section} with deterministic: expected one with credit after_step")
        # programs that step themselves need not pause during an update
        ahead = int(self.config.actor.collect_ahead or self.config.local.placement == "serve")
        intake = Intake(
            self.sockets.port, self.epoch, settings.window, terms, queue, record, ahead=ahead, lock_step=in_step
        )
        publisher = None if ranks.rank() else self.sockets.publisher
        self._writer = shared_writer(self.config, trainer.algorithm, self.epoch) if publisher else None
        versions = VersionPublisher(publisher, self._writer, self.epoch, intake.acting)
        return TrainingRun(trainer, intake, self.service, versions, self.meters)

    def close(self) -> None:
        """Take back the weights that are shared with processes of this machine."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
