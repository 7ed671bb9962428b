"""The clock, machine, files and disk under a run fail: it goes on, and in the end every rollout is accounted for.

All tests share a run, whose wall clock leaps by months at every reading.
"""

import csv
import os
import resource
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.build.odd import ODD
from tests.chaos.conftest import Note
from tests.chaos.runs import TINY, TO_SEE_S, closes, log, page, wait_for, wait_for_learning
from tests.helpers import wait_until
from zerobeast.common.process.roles import ROLES
from zerobeast_tools.chaos.inject import FaultInjector, disturbed_run

pytestmark = pytest.mark.timeout(600)

STANDSTILL_S = 12.0  #: longer than an actor tolerates a silent server, and an env-server a silent environment
LIMITS = ("--env", ODD, "--envserver.workers", "2", "--envserver.step_timeout_s", "10")
LEAPS = """
import random, time
leaping = random.Random(1)
time.time = lambda: 1.7e9 + leaping.uniform(-1e7, 1e7)
time.time_ns = lambda: int(1e9 * time.time())
"""
#: counters of faults that a fault of the machine must not be taken for
COUNTERS = {
    "actor": ("rollouts_cut_by_peer", "reconnects", "moves"),
    "envserver": ("env_errors", "env_timeouts"),
    "learner": ("write_errors", "nonfinite_updates"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultInjector]:
    folder = tmp_path_factory.mktemp("s")
    (folder / "leaping").mkdir()
    (folder / "leaping" / "sitecustomize.py").write_text(LEAPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "leaping"))
        with disturbed_run([*TINY, *LIMITS], folder) as injector:
            yield injector


def counters(run: FaultInjector) -> dict[str, dict[str, object]]:
    return {role: {name: page(run.fleet, role)[name] for name in names} for role, names in COUNTERS.items()}


def test_a_wall_clock_that_leaps_by_months_changes_logs_alone(run: FaultInjector, note: Note) -> None:
    watch, fleet = run.watch, run.fleet
    assert wait_for_learning(watch, 200)
    hours = {line[:2] for role in ROLES for line in log(fleet, role).splitlines()}
    assert len(hours) > 1, "the clock has leapt"
    with (fleet.config.folder / "metrics.csv").open() as file:
        elapsed = [float(row["elapsed_s"]) for row in csv.DictReader(file)]
    assert elapsed == sorted(elapsed)
    assert 0 <= elapsed[0] <= elapsed[-1] < TO_SEE_S
    assert wait_for(watch, lambda: page(fleet, "learner").get("checkpoint_age_s") is not None)
    assert page(fleet, "learner")["checkpoint_age_s"] < TO_SEE_S
    note("the wall clock leaps by months, at every reading")


def test_a_machine_that_stands_still_for_longer_than_any_limit_loses_nothing(run: FaultInjector, note: Note) -> None:
    watch, fleet = run.watch, run.fleet
    before = counters(run)
    machine = [psutil.Process(child.pid) for child in fleet.children]
    machine += [child for process in machine for child in process.children(recursive=True)]
    for process in machine:
        process.suspend()
    time.sleep(STANDSTILL_S)  # the fault itself
    for process in machine:
        process.resume()
    since = time.monotonic()
    assert wait_for_learning(watch)
    note(f"all processes are suspended for {STANDSTILL_S:g} s", since)
    assert wait_for_learning(watch, 200)
    assert counters(run) == before
    assert len(watch.versions) == 1


def test_training_goes_on_while_the_learner_can_open_no_file(run: FaultInjector, note: Note) -> None:
    watch, fleet = run.watch, run.fleet
    learner = fleet.child("learner 0").pid
    before = resource.prlimit(learner, resource.RLIMIT_NOFILE)

    def refused() -> bool:
        """Leave no descriptor free, not even one closed since the last call; whether the learner's log says so."""
        taken = {int(number) for number in os.listdir(f"/proc/{learner}/fd")}
        resource.prlimit(learner, resource.RLIMIT_NOFILE, (min(set(range(len(taken) + 1)) - taken), before[1]))
        return "checkpoint cannot be written: Too many open files" in log(fleet, "learner")

    wait_until(refused, TO_SEE_S)
    newest = max(watch.versions.values())
    wait_for(watch, lambda: max(watch.versions.values()) > newest + 50)  # its page needs a file, its weights do not
    resource.prlimit(learner, resource.RLIMIT_NOFILE, before)
    since = time.monotonic()
    wait_for(watch, lambda: page(fleet, "learner").get("unsaved") == "")
    note("the learner can open no file", since)


def test_in_the_end_every_rollout_is_accounted_for(run: FaultInjector) -> None:
    watch, fleet = run.watch, run.fleet
    assert closes(watch).dropped.keys() <= {"learner died after its checkpoint"}  # on a busy machine it may lose none
    assert watch.wrong_messages(1) == []
    assert set(fleet.retire().values()) == {0}
