"""A learner that acknowledges what it has stored is killed repeatedly: nothing acknowledged is lost or stored twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.runs import SMALL, closes, learned
from zerobeast.common.files import run_files
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast.tools.chaos.faults import FaultKind, ServiceFault
from zerobeast.tools.chaos.inject import FaultInjector, disturbed_run
from zerobeast.tools.chaos.soak import SETTINGS, STORING
from zerobeast.tools.chaos.witness.store import OriginFile

pytestmark = pytest.mark.timeout(600)


ANY_AGE = ("--learner.max_policy_lag", "1000000")  #: a kill forgets the rollouts that were dropped for their age


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FaultInjector]:
    with disturbed_run([*SETTINGS, *STORING, *SMALL, *ANY_AGE], tmp_path) as injector:
        yield injector


def test_accounts_close_and_every_rollout_is_stored_once(run: FaultInjector) -> None:
    watch, store = run.watch, run.fleet.config.store / "rows"
    for _ in range(2):
        assert learned(watch, 60)
        run.do(ServiceFault(FaultKind.KILL, ("learner 0",), 0.1))
    balance = closes(watch)
    assert balance.dropped == {}
    assert watch.wrong_messages(run.starts_of_the_learner) == []
    assert set(run.fleet.retire().values()) == {0}
    state = load_checkpoint(run.fleet.config.folder / run_files.CHECKPOINT)  # the actors went on after the balance
    stored = OriginFile(store).found
    assert len(stored) == len(set(stored)) == state["rollouts"]["ledger"]["used"] >= balance.used > 120
