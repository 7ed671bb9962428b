"""Rollouts that are acknowledged when an algorithm has stored them: each is stored once, whenever learners die."""

from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.build.learners import ENV, T, rollout_rows, run_config
from tests.build.streams import ListedRun, ListMessage
from tests.build.training import learn, training_run
from zerobeast.common.config.load import load
from zerobeast.common.config.process import Instance
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.records import Origin
from zerobeast.rl.algos.policy_gradient.one_step import OneStep
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.data.rollouts import Rollouts
from zerobeast.rl.learning.gradient_descent import GradientDescent
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Credit, Learned
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger
from zerobeast.services.learner.service import Learner
from zerobeast.services.learner.together import Rank
from zerobeast.services.learner.update import Trainer
from zerobeast.tools.chaos.balance import RolloutAudit
from zerobeast.tools.chaos.witness.store import OriginFile, StoringLearning

CPU, SENDERS = torch.device("cpu"), (11, 22)
Moment = Callable[[], None]  #: called where a learner may be killed


class Killed(BaseException):
    """Stands for SIGKILL."""


class Torn(OriginFile):
    """A file that is written in two parts."""

    def __init__(self, path: Path, moment: Moment) -> None:
        super().__init__(path)
        self.moment = moment

    def write(self, entry: bytes) -> None:
        for part in (entry[:7], entry[7:]):
            self.moment()
            super().write(part)
        self.moment()


class World(ListedRun):
    """Two actors, and one learner with a store after another. A fuse counts the moments until the next kill."""

    def __init__(self, folder: Path, seed: int, rows: int, bad: float) -> None:
        super().__init__(dict.fromkeys(SENDERS, rows), batch=4, window=2, seed=seed)
        self.config = run_config(folder, total_steps=10**9, max_policy_lag=10**6)
        self.audit, self.epoch, self.made, self.bad, self.fuse = RolloutAudit(), 0, 0, bad, -1
        self.saved: dict[str, Any] = {}
        self.restart()

    @property
    def stored(self) -> list[Origin]:
        return OriginFile(self.config.store / "rows").found

    def moment(self) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            raise Killed

    def restart(self) -> None:
        """Start a learner that continues from the checkpoint."""
        self.epoch, self.fuse = self.epoch + 1, -1
        self.trainer = trainer = Trainer(self.config, CPU, ENV)
        descent = GradientDescent(self.config, self.config.algorithm, trainer.net.parameters())
        rows = Torn(self.config.store / "rows", self.moment)
        trainer.learning = StoringLearning(trainer.net, descent, trainer.algorithm.loss, rows)  # type: ignore[attr-defined]
        record = SavedLedger()
        if self.saved:
            trainer.load(Path(), self.saved)
            record = SavedLedger.load(self.saved["rollouts"])
        record.recover(trainer.recovered())
        self.start(self.epoch, record)
        self.training, send = training_run(trainer, self.intake, lambda: self.now), self.port.send

        def mortal(header: Header) -> None:
            self.moment()
            send(header)

        self.port.send = mortal  # type: ignore[method-assign]
        self.look()

    def checkpoint(self) -> None:
        self.saved = deepcopy({**self.trainer.state(), "rollouts": self.intake.record().state()})

    def turn(self, loss: float = 0.0, *, acts: bool = True) -> None:
        self.now += 0.1
        for sender, outbox in self.outboxes.items():
            if acts and outbox.room:
                rows = rollout_rows(self.rows[sender])
                rows["reward"][:, 1] = np.nan if self.random.random() < self.bad else 0.0
                outbox.push(rows, [], self.now)
                self.made += len(rows)
        try:
            self.exchange(loss)
            learn(self.training)
        except Killed:
            while self.port.outbox:  # what was sent before
                header = self.port.outbox.popleft()
                if self.random.random() < 0.5:
                    self.outboxes[header.sender].accept(header, self.now)
            self.restart()
        self.look()

    def look(self) -> None:
        """Check that every acknowledged row is in the store and none is there twice."""
        stored = self.stored
        assert len(set(stored)) == len(stored)
        if not self.bad:
            whole = {
                (sender, 0, seq, row, n)
                for sender, n in self.rows.items()
                for seq in range(1, self.outboxes[sender].acked + 1)
                for row in range(n)
            }
            assert whole <= set(stored)
        for sender, outbox in self.outboxes.items():
            page = {"role": "actor", "sender": sender, "envs": 0, "rollouts_cut_by_peer": {}}
            self.audit.note(str(sender), page | {"streams": [[0, self.rows[sender], outbox.seq, outbox.acked]]})
        self.audit.note("learner", self.intake.page() | {"role": "learner"})

    def balance(self) -> None:
        """Let everything arrive, then check that the accounts close."""
        self.fuse = -1
        for _ in range(400):
            self.turn(acts=False)
        found, ledger = self.audit.balance(), self.intake.ledger
        assert (found.gap, found.waiting) == (0, 0)
        assert ledger.used == len(self.stored)
        assert self.trainer.counters.agent_steps == T * ledger.used
        assert ledger.used + ledger.refused + ledger.undone + self.intake.queue.rollouts == self.made


@pytest.mark.parametrize("bad", [0.0, 0.1], ids=["good", "some refused"])
@pytest.mark.parametrize("rows", [1, 3, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_a_learner_that_is_killed_at_any_moment_has_every_rollout_once(
    tmp_path: Path, seed: int, rows: int, bad: float
) -> None:
    world = World(tmp_path, seed, rows, bad)
    while world.epoch < 10:
        if world.fuse <= 0:
            world.fuse = world.random.randrange(1, 20)
        world.turn(0.2 if world.random.random() < 0.05 else 0.0)
        if world.random.random() < 0.1:
            world.checkpoint()
    world.balance()
    assert world.intake.ledger.undone == 0 or bad, "only what was refused can be forgotten"


def test_stored_rows_count_as_used_and_refused_ones_between_them_are_undone() -> None:
    record = SavedLedger(streams={(1, 0): StreamLedger(3, received=2, consumed=2, begun=1)})
    record.recover([Origin(1, 0, 3, 1, 3), Origin(1, 0, 3, 2, 3), Origin(1, 0, 5, 0, 3), Origin(2, 7, 1, 0, 1)])
    assert record.streams == {
        (1, 0): StreamLedger(3, received=4, consumed=4, begun=1),
        (2, 7): StreamLedger(1, received=1, consumed=1, anchored=True),
    }
    assert (record.ledger.used, record.ledger.undone) == (4, 3)


class Noting(OneBatch):
    def __init__(self, credit: Credit, said: list[str]) -> None:
        self.credit, self._said = credit, said

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        self._said.append("add")
        super().add(rollouts, agent_steps)

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        del batch, agent_steps
        self._said.append("step")
        return Learned(1, 0, True, 0.0, 0.0, 0.0, {})


ORDER = {"after_step": ["add", "step", "publish", "ack"], "after_store": ["add", "ack", "step", "publish"]}


@pytest.mark.parametrize("credit", get_args(Credit))
def test_credit_is_given_when_the_algorithm_requires(tmp_path: Path, credit: Credit) -> None:
    run = ListedRun({1: 4}, batch=4, window=1)
    run.start(1, SavedLedger())
    run.exchange()
    run.outboxes[1].push(rollout_rows(4), [], 0.0)
    run.exchange()
    said: list[str] = []
    trainer = Trainer(run_config(tmp_path), CPU, ENV)
    trainer.learning = Noting(credit, said)
    training = training_run(trainer, run.intake, lambda: 0.0)
    training.publish = partial(said.append, "publish")  # type: ignore[method-assign]
    run.port.send = lambda header: said.append("ack" if header.kind is Kind.ACK else "other")  # type: ignore[method-assign]
    while learn(training):
        assert len(said) < 10
    assert said == ORDER[credit]


def with_two_batches() -> ListedRun:
    """A run in whose queue two batches wait."""
    run = ListedRun({1: 4}, batch=4, window=4)
    run.start(1, SavedLedger())
    run.exchange()
    for _ in range(2):
        run.outboxes[1].push(rollout_rows(4), [], 0.0)
    run.exchange()
    return run


def test_more_than_was_granted_waits_in_the_socket_while_a_batch_is_learned_from() -> None:
    run = ListedRun({1: 4}, batch=4, window=1)
    run.start(1, SavedLedger())
    run.exchange()
    for seq in range(1, 9):
        sent = Header(Kind.ROLLOUT, 1, 0, 1, seq, (4, [], 0))
        run.port.inbox.append(ListMessage(sent, rollout_rows(4)))
    for _ in range(9):
        run.intake.receive(run.now)
        run.intake.queue.take()
    assert len(run.intake.queue) <= 2, "the batch, and what was granted"
    assert not run.port.refused


class Gathering(Noting):
    """Takes a step for every second batch."""

    @property
    def due(self) -> bool:
        return self._said.count("add") >= 2 * (self._said.count("step") + 1)


def test_a_batch_that_makes_no_step_due_is_acknowledged_without_one(tmp_path: Path) -> None:
    run = with_two_batches()
    said: list[str] = []
    trainer = Trainer(run_config(tmp_path), CPU, ENV)
    trainer.learning = Gathering("after_step", said)
    training = training_run(trainer, run.intake, lambda: 0.0)
    while learn(training):
        assert len(said) < 10
    assert said == ["add", "add", "step"]


class Thirsty(OneStep):
    """Takes three steps for each batch."""

    left = 0

    @property
    def due(self) -> bool:
        return self.left > 0

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        self.left, self.batch = 3, rollouts.batch.copy()
        super().add(rollouts, agent_steps)

    def step(self, agent_steps: int) -> Learned:
        self.left -= 1
        return self.update(self.batch, agent_steps)


def test_a_turn_takes_one_step_and_no_batch_while_one_is_due(tmp_path: Path) -> None:
    run = with_two_batches()
    config = run_config(tmp_path, total_steps=8 * T)
    trainer = Trainer(config, CPU, ENV)
    descent = GradientDescent(config, config.algorithm, trainer.net.parameters())
    trainer.learning = Thirsty(trainer.net, descent, trainer.algorithm.loss)  # type: ignore[attr-defined]
    training = training_run(trainer, run.intake, lambda: 0.0)
    seen = []
    while not training.finished:
        assert learn(training)
        seen.append((trainer.counters.updates, trainer.counters.agent_steps, run.intake.queue.usable))
    assert seen == [(1, 20, 4), (2, 20, 4), (3, 20, 4), (4, 40, 0), (5, 40, 0), (6, 40, 0)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_may_be_on_another_disk_where_each_run_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    monkeypatch.setattr(Rank, "join", lambda *_: None)
    flags = ["--root", str(tmp_path), "--name", "x", "--learner.ranks", "2", "--learner.store"]
    config, moved = (load([*flags, str(tmp_path / disk)], {}) for disk in "ab")

    def opened(config: RunConfig) -> Path:
        with closing(Learner(config, Instance(index=rank))) as learner:
            learner.open()
        return config.store.resolve()

    first = opened(config)
    assert (first.parent, opened(config)) == (tmp_path / "a", first)
    assert not caplog.messages
    assert opened(moved) == first
    assert caplog.messages == [f"learner.store {tmp_path}/b has no effect: this run has its replay in {first}"]
    config.folder.rename(tmp_path / "x.old")
    assert opened(config) not in (first, config.folder / "store")
    assert (tmp_path / "x.old" / "store").resolve() == first
