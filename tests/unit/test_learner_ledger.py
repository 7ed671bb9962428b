"""Every rollout is used once, over any number of starts of the learner, and credit lasts while any are wanted."""

import random
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.learners import ENV, T, answer, rollout_rows, run_config
from tests.build.streams import ListedRun, ListMessage, learn, training_run
from zerobeast.common.config.load import load_config
from zerobeast.common.config.process import Instance
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.records import Origin
from zerobeast.common.wire.session import Arrival
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.gradient_descent import GradientDescent
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Credit, Learned
from zerobeast.services.learner.coordination import Rank
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger
from zerobeast.services.learner.service import Learner
from zerobeast.services.learner.update import Trainer
from zerobeast.services.learner.window import PATIENCE_S
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
        record.recover(trainer.recover_rows())
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


RECORD = rollout_rows(1).dtype
TURNS = 30
MAX_LAG = 3
BOTH = pytest.mark.parametrize("credit", get_args(Credit))


class Taking(OneBatch):
    """Changes the policy with every batch, and records how many rows each had."""

    def __init__(self, credit: Credit) -> None:
        self.credit = credit
        self.batches: list[int] = []

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        del agent_steps
        assert batch.reward.isfinite().all()
        assert self.credit == "after_store" or (batch.policy_version >= len(self.batches) - MAX_LAG).all()
        self.batches.append(batch.mask.shape[1])
        return answer(1, changed=True)


class Run(ListedRun):
    """Streams of these sizes that feed one learner, as fast as credit allows."""

    def __init__(self, rows: list[int], batch: int, window: int, credit: Credit) -> None:
        super().__init__(dict(enumerate(rows, 1)), batch, window)
        self.start(1, SavedLedger())
        config = run_config(Path(), total_steps=10**9, max_policy_lag=MAX_LAG)
        trainer = Trainer(config, torch.device("cpu"), ENV)
        trainer.learning = self.learning = Taking(credit)
        self.training = training_run(trainer, self.intake, lambda: self.now)
        self.training.publish()

    @property
    def batches(self) -> list[int]:
        return self.learning.batches

    def turn(self, lag: Callable[[int, int], int | None], acting: int) -> None:
        """One message from each of the first `acting` streams that has credit, `lag` versions old; unusable if None."""
        self.now += 0.01
        for sender, outbox in list(self.outboxes.items())[:acting]:
            if outbox.stream.open and outbox.room:
                rows = np.zeros(self.rows[sender], RECORD)
                age = lag(sender, outbox.seq)
                rows["policy_version"] = 0 if age is None else max(0, len(self.batches) - age)
                rows["reward"] = np.nan if age is None else 0.0
                outbox.push(rows, [], self.now)
        self.exchange()
        self.training.drop_stale_rollouts()
        while learn(self.training):
            self.training.drop_stale_rollouts()
        self.exchange()


@BOTH
@settings(deadline=None, max_examples=15)
@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    batch=st.integers(1, 12),
    window=st.integers(1, 3),
    bad=st.lists(st.one_of(st.none(), st.just(0), st.integers(0, 9)), min_size=1, max_size=12),
)
def test_a_run_never_stands_still_while_anything_good_arrives(
    credit: Credit, rows: list[int], batch: int, window: int, bad: list[int | None]
) -> None:
    run = Run(rows, batch, window, credit)

    def lag(sender: int, seq: int) -> int | None:
        return bad[(sender * 5 + seq) % len(bad)]

    for _ in range(TURNS):
        run.turn(lag, acting=len(rows))
    sent = sum(outbox.seq for outbox in run.outboxes.values())
    if all(age is None for age in bad):
        assert not run.batches
    elif None not in bad and max(age or 0 for age in bad) <= 0:
        assert set(run.batches) == {batch}, "a batch is short only where rollouts were refused or stale"
    ledger = run.intake.ledger
    assert sent >= TURNS // 2, "credit comes back"
    queue = run.intake.queue
    delivered = sum(outbox.seq * run.rows[sender] for sender, outbox in run.outboxes.items())
    assert ledger.used + ledger.refused + ledger.stale + queue.rollouts == delivered
    if any(age is not None and age <= 1 for age in bad):
        run.turn(lambda _sender, _seq: 0, acting=len(rows))
        before = len(run.batches)
        for _ in range(batch + 2):
            run.turn(lambda _sender, _seq: 0, acting=len(rows))
        assert len(run.batches) > before, "good rollouts are learned from at once"


@BOTH
def test_a_stream_that_has_credit_and_hangs_is_not_waited_for_without_end(credit: Credit) -> None:
    run = Run([4, 4], batch=16, window=4, credit=credit)
    run.turn(lambda _sender, _seq: 0, acting=0)
    run.turn(lambda _sender, _seq: 0, acting=1)
    run.outboxes = dict(reversed(run.outboxes.items()))
    for _ in range(4):  # messages of the second stream, which then has no credit; two are refused
        run.turn(lambda _sender, seq: None if seq in (1, 2) else 0, acting=1)
    run.now += PATIENCE_S - 1
    run.turn(lambda _sender, _seq: 0, acting=0)
    assert not run.batches, "its environments may be slow"
    run.now += 2
    run.turn(lambda _sender, _seq: 0, acting=0)
    assert run.batches == [12]


@BOTH
def test_credit_is_given_when_the_algorithm_requires(credit: Credit) -> None:
    run, said = Run([4], batch=4, window=4, credit=credit), list[str]()

    def noting(name: str, act: Callable[..., Any]) -> Any:
        return lambda *given: (said.append(name), act(*given))[1]

    run.exchange()
    run.outboxes[1].push(np.zeros(4, RECORD), [], 0.0)
    run.exchange()
    for owner, name in ((run.learning, "add"), (run.learning, "step"), (run.training, "publish"), (run.port, "send")):
        setattr(owner, name, noting(name, getattr(owner, name)))
    while learn(run.training):
        assert len(said) < 10
    order = ["send", "step", "publish"] if credit == "after_store" else ["step", "publish", "send"]
    assert said == ["add", *order]


def test_more_than_was_granted_waits_in_the_socket_while_a_batch_is_learned_from() -> None:
    run = Run([4], batch=4, window=1, credit="after_step")
    run.exchange()
    for seq in range(1, 9):
        run.port.inbox.append(ListMessage(Header(Kind.ROLLOUT, 1, 0, 1, seq, (4, [], 0)), rollout_rows(4)))
    for _ in range(9):
        run.intake.receive(run.now)
        run.intake.queue.take()
    assert len(run.intake.queue) <= 2, "the batch, and what was granted"
    assert not run.port.refused


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_may_be_on_another_disk_where_each_run_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    monkeypatch.setattr(Rank, "join", lambda *_: None)
    flags = ["--root", str(tmp_path), "--name", "x", "--learner.ranks", "2", "--learner.store"]
    config, moved = (load_config([*flags, str(tmp_path / disk)], {}) for disk in "ab")

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
