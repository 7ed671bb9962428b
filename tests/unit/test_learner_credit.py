"""Credit cannot run out while rollouts are wanted, whatever is refused. An update takes no time."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.learners import ENV, answer, rollout_rows, run_config
from tests.build.streams import ListedRun, ListMessage, learn, training_run
from zerobeast.common.config.load import load
from zerobeast.common.config.process import Instance
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Credit, Learned
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.service import Learner
from zerobeast.services.learner.together import Rank
from zerobeast.services.learner.update import Trainer
from zerobeast.services.learner.window import PATIENCE_S

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
        self.training.settle()
        while learn(self.training):
            self.training.settle()
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
