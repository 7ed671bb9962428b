"""Services of one run are killed, asked to end and stopped while it trains: it goes on, nothing is mixed up, and in the
end every rollout is accounted for.

All tests but the last share a run with the witness: a mix-up ends a service, which fails the test that notices it.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.runs import SMALL, closes, wait_for_learning
from zerobeast.common.process.roles import ROLES
from zerobeast_tools.chaos.faults import FaultKind, ServiceFault
from zerobeast_tools.chaos.inject import FaultInjector, disturbed_run
from zerobeast_tools.chaos.soak import SETTINGS, WITNESS

pytestmark = pytest.mark.timeout(600)

STOPPED_S = 3.0
FIRST_LOOK_S = 8.0  #: of undisturbed training, which show the usual rate


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultInjector]:
    folder = tmp_path_factory.mktemp("w")
    with disturbed_run([*SETTINGS, *WITNESS, *SMALL], folder) as injector:
        injector.watch.until(time.monotonic() + FIRST_LOOK_S)
        yield injector


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.STOP])
@pytest.mark.parametrize("role", ROLES)
def test_a_run_is_back_at_its_rate_after_a_service_is_disturbed(run: FaultInjector, role: str, kind: FaultKind) -> None:
    pause_s = STOPPED_S if kind is FaultKind.STOP else 0.1
    assert run.do(ServiceFault(kind, (f"{role} 0",), pause_s)).back_at is not None


@pytest.mark.parametrize(
    ("kind", "targets"), [(FaultKind.KILL, ("learner 0", "broker 0")), (FaultKind.TERM, ("actor 1", "envserver 0"))]
)
def test_a_run_is_back_at_its_rate_after_two_services_have_ended_at_once(
    run: FaultInjector, kind: FaultKind, targets: tuple[str, str]
) -> None:
    event = run.do(ServiceFault(kind, targets, 0.5))
    assert event.back_at is not None, event
    assert "exit code" not in event.broken, event


def test_in_the_end_every_rollout_is_accounted_for_and_nothing_strange_was_observed(run: FaultInjector) -> None:
    watch, fleet = run.watch, run.fleet
    balance = closes(watch)
    assert balance.used > 0
    assert balance.dropped["learner died after its checkpoint"] > 0, "it was killed, and its checkpoint was older"
    assert all(balance.cut[peer] > 0 for peer in ("envserver", "broker", "actor"))
    assert watch.wrong_messages(run.starts_of_the_learner) == []
    assert wait_for_learning(watch, 200), "it goes on after the accounts are settled"
    assert set(fleet.retire().values()) == {0}
    lines = (fleet.config.folder / "metrics.csv").read_text().splitlines()
    steps = [int(line.split(",")[1]) for line in lines[1:]]
    assert steps == sorted(steps), "rows that a killed learner wrote beyond its checkpoint are gone"


def test_training_begins_anew_when_broker_and_learner_die_before_the_first_checkpoint(tmp_path: Path) -> None:
    flags = [
        *("--env", "CartPole-v1", "--net.hidden_size", "8", "--net.core", "lstm", "--net.core_width", "4"),
        *("--actor.envs_per_group", "2", "--learner.unroll_length", "5", "--learner.batch_size", "4"),
        *("--learner.checkpoint_every_s", "1000"),
    ]
    with disturbed_run(flags, tmp_path) as injector:
        watch = injector.watch
        assert wait_for_learning(watch, 200)
        injector.do(ServiceFault(FaultKind.KILL, ("broker 0", "learner 0"), 0.1))
        assert wait_for_learning(watch, 200)
        balance = closes(watch)
        assert balance.dropped["learner died after its checkpoint"] >= 200
        assert len(watch.versions) == 2
