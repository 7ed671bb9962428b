"""Workers, which host three services each, their learner and environments in them die, stop, hang and take their time.

Most tests share a run whose environments step in the thread of their worker and do what files say (`odd_worker`).
"""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.chaos.odd_worker import FOLDER
from tests.chaos.runs import TO_SEE_S
from tests.helpers import wait_until
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.health.figures import ServiceView, state_of
from zerobeast.common.process.roles import RECORDS, SERVICES_BY_PROCESS
from zerobeast_tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(600)

FUSED = (
    *("--local.placement", "fused", "--local.workers", "2", "--actor.env_groups", "1", "--env", "CartPole-v1"),
    *("--net.hidden_size", "8", "--learner.checkpoint_every_s", "0.5"),
)
STOPPED_S = 4.0
PATIENCE_S = 8  #: a server's step timeout for an environment's process
MOST_BLOCKS = 1024  #: of 512 bytes, the most in a file; weights in memory would need 4,000
BOTH = ("worker 0", "learner 0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files say how environments misbehave."""
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[ThrowawayRun]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        found = ThrowawayRun(FUSED, tmp_path_factory.mktemp("f"), modules={"worker": "tests.chaos.odd_worker"})
    with found:
        found.start_all()
        found.until_it_trains()
        yield found


def all_take_part(run: ThrowawayRun, workers: tuple[int, ...] = (0, 1)) -> None:
    """Wait until each of these workers has made more steps, with newer weights, and the learner has learned more."""

    def figures(role: str, name: str) -> list[int]:
        return [int(run.child(f"worker {index}").page(role).get(name, 0)) for index in workers]

    def counts() -> list[int]:
        return [*figures("actor", "agent_steps"), run.agent_steps()]

    run.wait_for(lambda: min(counts()) > 0, "not all are there", TO_SEE_S)
    before, acted = counts(), figures("broker", "policy_version")
    run.wait_for(lambda: all(a > b for a, b in zip(counts(), before, strict=True)), "not all go on", TO_SEE_S)

    def newer() -> bool:
        return all(a != b for a, b in zip(figures("broker", "policy_version"), acted, strict=True))

    run.wait_for(newer, "no newer weights", TO_SEE_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_training_goes_on_after_processes_have_ended_or_were_stopped(run: ThrowawayRun, number: signal.Signals) -> None:
    all_take_part(run)
    if number is signal.SIGSTOP:
        for name in BOTH:
            run.freeze(name)
        time.sleep(STOPPED_S)
        run.thaw_all()
        all_take_part(run)
        assert [page["refused_by_reason"] for page in run.pages("learner")] == [{}]
    else:
        assert set(run.end(list(BOTH), number).values()) == {-number if number is signal.SIGKILL else 0}
        for name in BOTH:
            run.restart(name)
        all_take_part(run)


def from_memory(run: ThrowawayRun) -> list[bool]:
    """Whether the newest weights of each broker came from memory."""
    return [page.get("weights_from_memory") for page in run.pages("broker")]


def test_weights_come_from_memory_and_workers_give_way_to_the_learner(run: ThrowawayRun) -> None:
    all_take_part(run)
    (place,) = Path(run.folder).glob("*.weights")
    assert place.read_text().split()[0] == str(run.child("learner 0").pid)
    assert from_memory(run) == [True, True]
    learner, *workers = (psutil.Process(child.pid).nice() for child in run.children)
    assert learner == psutil.Process().nice()
    assert {nice - learner for nice in workers} == {RECORDS["worker"].niceness}


@pytest.mark.nightly
def test_weights_travel_by_socket_while_there_is_no_memory_for_them(tmp_path: Path) -> None:
    with ThrowawayRun([*FUSED, "--net.hidden_size", "512", "--local.workers", "1"], tmp_path) as run:
        run.start_all()
        learner = run.child("learner 0")
        whole = learner.spec
        limited = replace(whole, command=["sh", "-c", f'ulimit -f {MOST_BLOCKS} && exec "$@"', "sh", *whole.command])
        run.wait_for(lambda: from_memory(run) == [True], "weights do not come from memory", TO_SEE_S)
        for spec, memory in ((limited, False), (whole, True)):
            run.end(["learner 0"], signal.SIGKILL)  # the file that says where its memory is stays
            learner.spec = spec
            run.restart("learner 0")
            run.wait_for(lambda memory=memory: from_memory(run) == [memory], f"from memory: not {memory}", TO_SEE_S)  # type: ignore[misc]
            all_take_part(run, (0,))


def says(run: ThrowawayRun, what: str) -> bool:
    """Whether all services of the first worker are in this state."""
    child = run.child("worker 0")
    return all(state_of(ServiceView(role, role, child.page(role))) == what for role in SERVICES_BY_PROCESS["worker"])


@pytest.mark.parametrize(("moment", "state"), [("step", "stuck"), ("make", "starting")])
def test_slow_environments_hold_up_their_worker_alone(run: ThrowawayRun, folder: Path, moment: str, state: str) -> None:
    all_take_part(run)
    if moment == "make":
        run.end(["worker 0"], signal.SIGKILL)
    cut = run.child("worker 0").page("actor").get("rollouts_cut", 0)
    write_atomically(folder / f"{moment}-0", "wait", durable=False)
    if moment == "make":
        run.restart("worker 0")
    run.wait_for(lambda: says(run, state), "its pages do not say so", TO_SEE_S)
    all_take_part(run, (1,))
    (folder / f"{moment}-0").unlink()
    all_take_part(run)
    assert says(run, "ready")
    assert run.child("worker 0").page("actor")["rollouts_cut"] == cut, "no session has ended"


@pytest.mark.parametrize(("deed", "words"), [("abort", "killed by SIGABRT"), ("raise", "'CartPole-v1' has failed")])
def test_an_environment_that_ends_its_worker_is_named_and_costs_no_other(
    run: ThrowawayRun, folder: Path, deed: str, words: str
) -> None:
    all_take_part(run)
    child = run.child("worker 0")
    write_atomically(folder / "step-0", deed, durable=False)
    wait_until(lambda: not child.running, TO_SEE_S)
    assert words in child.explain()
    run.restart("worker 0")
    all_take_part(run)
