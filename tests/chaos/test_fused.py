"""Workers, which host three services each, are killed, stopped and ended while they train, and so is their learner."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.runs import TO_SEE_S
from zerobeast.common.runtime.usage import GIVEN_WAY
from zerobeast.tools.throwaway_run import ThrowawayRun

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

FUSED = (
    *("--local.placement", "fused", "--local.workers", "2", "--actor.env_groups", "1", "--env", "CartPole-v1"),
    *("--net.hidden_size", "8", "--learner.checkpoint_every_s", "0.5"),
)
STOPPED_S = 6.0
NAMES = ("worker 0", "learner 0", "worker 0 and learner 0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayRun]:
    with ThrowawayRun(FUSED, tmp_path_factory.mktemp("f")) as found:
        found.start_all()
        found.until_it_trains()
        yield found


def all_take_part(run: ThrowawayRun) -> None:
    """Wait until every worker has made more steps, with newer weights, and the learner has learned more."""

    def counts() -> list[int]:
        pages = [run.child(name).page(role) for name, role in (("worker 0", "actor"), ("worker 1", "actor"))]
        return [int(page.get("agent_steps", 0)) for page in pages] + [run.agent_steps()]

    def versions() -> list[int]:
        return [int(page.get("policy_version", -1)) for page in run.pages("broker")]

    run.wait_for(lambda: min(counts()) > 0, "not all are there", TO_SEE_S)
    before, acted = counts(), versions()
    run.wait_for(lambda: all(a > b for a, b in zip(counts(), before, strict=True)), "not all go on", TO_SEE_S)
    run.wait_for(lambda: all(a != b for a, b in zip(versions(), acted, strict=True)), "no newer weights", TO_SEE_S)


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


def test_weights_come_from_memory(run: ThrowawayRun) -> None:
    all_take_part(run)
    places = list(Path(run.folder).glob("*.weights"))
    assert len(places) == 1
    assert places[0].read_text().split()[0] == str(run.child("learner 0").pid)
    assert [page["weights_from_memory"] for page in run.pages("broker")] == [True, True]


def test_workers_give_way_to_the_learner(run: ThrowawayRun) -> None:
    all_take_part(run)
    assert [psutil.Process(child.pid).nice() for child in run.children] == [0, GIVEN_WAY, GIVEN_WAY]
