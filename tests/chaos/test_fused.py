"""Workers, which host three services each, and their learner are killed, stopped and ended while they train."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.chaos.runs import TO_SEE_S, closes, learned
from tests.chaos.workers import FUSED, all_take_part
from zerobeast.common.errors import BeastError
from zerobeast.common.service.entry import NICENESS
from zerobeast.tools.chaos.faults import FaultKind, ServiceFault
from zerobeast.tools.chaos.inject import disturbed_run
from zerobeast.tools.chaos.soak import SETTINGS, WITNESS
from zerobeast.tools.chaos.watch import RunWatch
from zerobeast.tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(600)

STOPPED_S = 6.0
MOST_BLOCKS = 1024  #: of 512 bytes, the most in a file; weights in memory would need 4,000
NO_MEMORY = "weights travel by socket, also on this machine: no memory to share: [Errno 27] File too large"
NAMES = ("worker 0", "learner 0", "worker 0 and learner 0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayRun]:
    with ThrowawayRun(FUSED, tmp_path_factory.mktemp("f")) as found:
        found.start_all()
        found.until_it_trains()
        yield found


@pytest.mark.parametrize(
    ("names", "number"), [*((names, signal.SIGKILL) for names in NAMES), (NAMES[-1], signal.SIGTERM)]
)
def test_training_goes_on_after_processes_have_ended_and_were_started_again(
    run: ThrowawayRun, names: str, number: signal.Signals
) -> None:
    all_take_part(run)
    ended = names.split(" and ")
    codes = run.end(ended, number)
    assert set(codes.values()) == {-number if number is signal.SIGKILL else 0}
    for name in ended:
        run.restart(name)
    all_take_part(run)


@pytest.mark.parametrize("names", NAMES)
def test_training_goes_on_after_processes_were_stopped(run: ThrowawayRun, names: str) -> None:
    all_take_part(run)
    for name in names.split(" and "):
        run.freeze(name)
    time.sleep(STOPPED_S)
    run.thaw_all()
    all_take_part(run)
    assert [page["refused_by_reason"] for page in run.pages("learner")] == [{}]


def sources(run: ThrowawayRun) -> list[bool]:
    """Whether the newest weights of each broker came from memory."""
    return [page.get("weights_from_memory") for page in run.pages("broker")]


def comes_from_memory(run: ThrowawayRun) -> None:
    run.wait_for(lambda: sources(run) == [True], "weights do not come from memory", TO_SEE_S)


def comes_by_socket(run: ThrowawayRun) -> None:
    run.wait_for(lambda: sources(run) == [False], "weights do not come by socket", TO_SEE_S)


def test_weights_come_from_memory(run: ThrowawayRun) -> None:
    all_take_part(run)
    places = list(Path(run.folder).glob("*.weights"))
    assert len(places) == 1
    assert places[0].read_text().split()[0] == str(run.child("learner 0").pid)
    assert sources(run) == [True, True]


def test_workers_give_way_to_the_learner(run: ThrowawayRun) -> None:
    all_take_part(run)
    assert [psutil.Process(child.pid).nice() for child in run.children] == [0, NICENESS["worker"], NICENESS["worker"]]


def test_weights_travel_by_socket_while_there_is_no_memory_for_them(run: ThrowawayRun, tmp_path: Path) -> None:
    with ThrowawayRun([*FUSED, "--net.hidden_size", "512", "--local.workers", "1"], tmp_path) as other:
        other.start_all()
        learner = other.child("learner 0")
        whole = learner.spec
        limited = replace(whole, command=["sh", "-c", f'ulimit -f {MOST_BLOCKS} && exec "$@"', "sh", *whole.command])
        comes_from_memory(other)
        for spec, probe in ((limited, comes_by_socket), (whole, comes_from_memory)):
            other.end(["learner 0"], signal.SIGKILL)  # the file that says where its memory is stays
            learner.spec = spec
            other.restart("learner 0")
            probe(other)
            all_take_part(other, (0,))
        assert whole.log.read_text().count(NO_MEMORY) == 1
    all_take_part(run)
    assert sources(run) == [True, True], "a run of the same user has memory of its own"


def test_every_rollout_is_accounted_for_after_faults_of_workers_and_their_learner(tmp_path: Path) -> None:
    flags = [*SETTINGS, *WITNESS, "--local.placement", "fused"]
    with disturbed_run(flags, tmp_path) as injector:
        for kind, *targets in (
            (FaultKind.KILL, "worker 0", "learner 0"),
            (FaultKind.TERM, "worker 1"),
        ):
            injector.do(ServiceFault(kind, tuple(targets), 0.1))
        watch = injector.watch
        balance = closes(watch)
        assert balance.used > 0
        assert balance.cut["actor"] > 0
        assert watch.wrong_messages(injector.starts_of_the_learner) == []
        assert learned(watch, 100), "it goes on after the accounts are settled"


def test_accounts_of_workers_that_step_environments_themselves_are_not_settled(run: ThrowawayRun) -> None:
    with closing(RunWatch(run)) as watch, pytest.raises(BeastError, match="worker 0 steps its environments itself"):
        watch.settle()
