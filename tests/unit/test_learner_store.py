"""In which order rollouts are added, learned from and acknowledged, and where a store may be."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import torch

from tests.build.learners import ENV, rollout_rows, run_config
from tests.build.streams import ListedRun, ListMessage
from tests.build.training import learn, training_run
from zerobeast.common.config.load import load
from zerobeast.common.config.process import Instance
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.data.rollouts import Rollouts
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Credit, Learned
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.service import Learner
from zerobeast.services.learner.together import Rank
from zerobeast.services.learner.update import Trainer

CPU = torch.device("cpu")


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


def waiting(batches: int, window: int = 4) -> ListedRun:
    """A run in whose queue so many batches wait."""
    run = ListedRun({1: 4}, batch=4, window=window)
    run.start(1, SavedLedger())
    run.exchange()
    for _ in range(batches):
        run.outboxes[1].push(rollout_rows(4), [], 0.0)
    run.exchange()
    return run


@pytest.mark.parametrize("credit", get_args(Credit))
def test_credit_is_given_when_the_algorithm_requires(tmp_path: Path, credit: Credit) -> None:
    run, said = waiting(1), list[str]()
    trainer = Trainer(run_config(tmp_path), CPU, ENV)
    trainer.learning = Noting(credit, said)
    training = training_run(trainer, run.intake, lambda: 0.0)
    training.publish = partial(said.append, "publish")  # type: ignore[method-assign]
    run.port.send = lambda header: said.append("ack" if header.kind is Kind.ACK else "other")  # type: ignore[method-assign]
    while learn(training):
        assert len(said) < 10
    assert said == ORDER[credit]


def test_more_than_was_granted_waits_in_the_socket_while_a_batch_is_learned_from() -> None:
    run = waiting(0, window=1)
    for seq in range(1, 9):
        sent = Header(Kind.ROLLOUT, 1, 0, 1, seq, (4, [], 0))
        run.port.inbox.append(ListMessage(sent, rollout_rows(4)))
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
