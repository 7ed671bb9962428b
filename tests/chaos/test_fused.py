"""Workers, which host three services each, are killed, stopped and ended while they train, and so is their learner."""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.chaos.runs import TO_SEE_S
from tests.chaos.workers import FUSED, all_take_part
from zerobeast.common.runtime.usage import GIVEN_WAY
from zerobeast.tools.throwaway_run import ThrowawayRun

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

STOPPED_S = 6.0
MOST_BLOCKS = 1024  #: of 512 bytes, in a file; weights in memory would need 4,000
NO_MEMORY = "weights travel by socket, also on this machine: no memory to share: [Errno 27] File too large"
NAMES = ("worker 0", "learner 0", "worker 0 and learner 0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayRun]:
    with ThrowawayRun(FUSED, tmp_path_factory.mktemp("f")) as found:
        found.start_all()
        found.until_it_trains()
        yield found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("names", NAMES)
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


def test_weights_come_from_memory(run: ThrowawayRun) -> None:
    all_take_part(run)
    places = list(Path(run.folder).glob("*.weights"))
    assert len(places) == 1
    assert places[0].read_text().split()[0] == str(run.child("learner 0").pid)
    assert sources(run) == [True, True]


def test_workers_give_way_to_the_learner(run: ThrowawayRun) -> None:
    all_take_part(run)
    assert [psutil.Process(child.pid).nice() for child in run.children] == [0, GIVEN_WAY, GIVEN_WAY]


def test_weights_travel_by_socket_while_there_is_no_memory_for_them(tmp_path: Path) -> None:
    with ThrowawayRun([*FUSED, "--net.hidden_size", "512", "--local.workers", "1"], tmp_path) as run:
        run.start_all()
        learner = run.child("learner 0")
        unlimited = learner.spec
        limited = ["sh", "-c", f'ulimit -f {MOST_BLOCKS} && exec "$@"', "sh", *unlimited.command]
        for spec, from_memory in ((unlimited, True), (replace(unlimited, command=limited), False), (unlimited, True)):
            if spec is not learner.spec:
                run.end(["learner 0"], signal.SIGKILL)  # whose place stays
                learner.spec = spec
                run.restart("learner 0")
            run.wait_for(lambda: sources(run) == [from_memory], f"weights from memory: not {from_memory}", TO_SEE_S)  # noqa: B023
            all_take_part(run, (0,))
        assert unlimited.log.read_text().count(NO_MEMORY) == 1
