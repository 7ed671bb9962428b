"""Every rollout is used once, over any number of starts of the learner, and the ledger says what became of it."""

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.build.learners import ENV, T, answer, rollout_rows, run_config
from tests.build.streams import ListedRun, learn, training_run
from zerobeast.common.wire.messages import Header
from zerobeast.common.wire.records import Origin
from zerobeast.common.wire.session import Arrival
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.gradient_descent import GradientDescent
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Learned
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger
from zerobeast.services.learner.update import Trainer
from zerobeast_tools.chaos.balance import RolloutAudit
from zerobeast_tools.chaos.witness.store import OriginFile, StoringLearning

SENDERS = (11, 22)
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


class Listing(OneBatch):
    """Lists the rows that it has learned from; one loss of ten is not finite."""

    def __init__(self, rows: list[Any], moment: Moment, random: random.Random) -> None:
        self.parts, self.rows, self.moment, self.random = {}, rows, moment, random

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        del agent_steps
        self.moment()
        self.rows += map(tuple, batch.origin.tolist())
        self.moment()
        return answer(0, skipped=1) if self.random.random() < 0.1 else answer(1, changed=True)


class World(ListedRun):
    """Two actors, and one learner after another. A fuse counts the moments until the next one is killed."""

    def __init__(self, folder: Path, seed: int, rows: int, bad: float, *, stores: bool) -> None:
        super().__init__(dict.fromkeys(SENDERS, rows), batch=4, window=2, seed=seed)
        self.config = run_config(folder, total_steps=10**9, max_policy_lag=10**6)
        self.audit, self.epoch, self.made, self.bad, self.fuse = RolloutAudit(), 0, 0, bad, -1
        self.stores, self.saved = stores, dict[str, Any]()
        self.restart()

    @property
    def taken(self) -> list[Origin]:
        """The rows that what is known now was learned from, or that are stored to be."""
        return OriginFile(self.config.store / "rows").found if self.stores else self.listed

    def moment(self) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            raise Killed

    def restart(self) -> None:
        """Start a learner that continues from the checkpoint."""
        self.epoch, self.fuse = self.epoch + 1, -1
        self.listed = list(self.saved.get("listed", ()))
        self.trainer = trainer = Trainer(self.config, torch.device("cpu"), ENV)
        if self.stores:
            descent = GradientDescent(self.config, self.config.algorithm, trainer.net.parameters())
            rows = Torn(self.config.store / "rows", self.moment)
            trainer.learning = StoringLearning(trainer.net, descent, trainer.algorithm.loss, rows)  # type: ignore[attr-defined]
        else:
            trainer.learning = Listing(self.listed, self.moment, self.random)
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
        state = {**self.trainer.state(), "rollouts": self.intake.record().state(), "listed": self.listed}
        self.saved = deepcopy(state)

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
        if acts:
            self.look()

    def look(self) -> None:
        """Check that no row was taken twice, and that a store has every row that was acknowledged."""
        taken = self.taken
        assert len(set(taken)) == len(taken)
        if self.stores and not self.bad:
            whole = {
                (sender, 0, seq, row, n)
                for sender, n in self.rows.items()
                for seq in range(1, self.outboxes[sender].acked + 1)
                for row in range(n)
            }
            assert whole <= set(taken)
        for sender, outbox in self.outboxes.items():
            page = {"role": "actor", "sender": sender, "envs": 0, "rollouts_cut_by_peer": {}}
            self.audit.note(str(sender), page | {"streams": [[0, self.rows[sender], outbox.seq, outbox.acked]]})
        self.audit.note("learner", self.intake.page() | {"role": "learner"})

    def balance(self) -> None:
        """Let everything arrive, then check that the accounts close."""
        self.fuse = -1
        for _ in range(300):
            self.turn(acts=False)
        self.look()
        found, ledger = self.audit.balance(), self.intake.ledger
        assert (found.gap, found.waiting) == (0, 0)
        assert ledger.used + ledger.skipped == len(self.taken)
        assert self.trainer.counters.agent_steps == T * len(self.taken)
        assert len(self.taken) + ledger.refused + ledger.undone + self.intake.queue.rollouts == self.made
        assert self.bad or (ledger.refused, self.port.refused.total()) == (0, 0)


@pytest.mark.parametrize("stores", [False, True], ids=["no store", "a store"])
@pytest.mark.parametrize("bad", [0.0, 0.1], ids=["good", "some refused"])
@pytest.mark.parametrize("rows", [1, 3, 4, 6])
@pytest.mark.parametrize("seed", range(2))
def test_learners_that_are_killed_at_any_moment_use_every_rollout_once_and_count_what_is_undone(
    tmp_path: Path, seed: int, rows: int, bad: float, *, stores: bool
) -> None:
    world = World(tmp_path, seed, rows, bad, stores=stores)
    while world.epoch < 7:
        if world.fuse <= 0:
            world.fuse = world.random.randrange(1, 20)
        world.turn(0.2 if world.random.random() < 0.05 else 0.0)
        if world.random.random() < 0.1:
            world.checkpoint()
    world.balance()
    assert not stores or bad or world.intake.ledger.undone == 0, "only what was refused can be forgotten"


@pytest.mark.parametrize("stores", [False, True], ids=["no store", "a store"])
def test_learners_that_end_in_order_lose_nothing(tmp_path: Path, *, stores: bool) -> None:
    world = World(tmp_path, 0, 3, 0.0, stores=stores)
    for turn in range(60):
        world.turn()
        if turn % 10 == 9:
            world.checkpoint()
            world.restart()
    world.balance()
    assert world.intake.ledger.undone == 0


def test_a_stream_begins_at_the_number_that_hello_names_or_else_anywhere() -> None:
    named = StreamLedger(rows=4)
    assert named.begin(1) == 0
    assert [named.arrival(seq) for seq in (1, 2)] == [Arrival.NEW, Arrival.AHEAD]
    silent = StreamLedger(4, received=50, consumed=50, anchored=True)
    assert (silent.begin(None), silent.arrival(58)) == (0, Arrival.NEW)
