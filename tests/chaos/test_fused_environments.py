"""Environments inside workers that take their time, raise, die or hang: the other worker and the learner train on."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.odd import ODD
from tests.chaos.odd_worker import FOLDER
from tests.chaos.runs import TO_SEE_S
from tests.chaos.workers import FUSED, all_take_part
from tests.helpers import wait_until
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.health.figures import ServiceView, state
from zerobeast.common.process.roles import HOSTED
from zerobeast.tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 8  #: a server's step timeout for an environment's process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files say how environments misbehave."""
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[ThrowawayRun]:
    """A run whose environments step in the thread of their worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        found = ThrowawayRun(FUSED, tmp_path_factory.mktemp("f"), modules={"worker": "tests.chaos.odd_worker"})
    with found:
        found.start_all()
        found.until_it_trains()
        yield found


def says(run: ThrowawayRun, what: str) -> bool:
    """Whether all services of the first worker are in this state."""
    child = run.child("worker 0")
    return all(state(ServiceView(role, role, child.page(role))) == what for role in HOSTED["worker"])


def total(run: ThrowawayRun, counter: str) -> int:
    return sum(page[counter] for page in run.pages("envserver"))


def log(run: ThrowawayRun) -> str:
    return run.child("worker 0").spec.log.read_text()


def test_a_step_that_takes_seconds_holds_up_its_worker_alone_and_ends_no_session(
    run: ThrowawayRun, folder: Path
) -> None:
    all_take_part(run)
    (folder / "step-0").write_text("wait")
    run.wait_for(lambda: says(run, "stuck"), "its pages do not say so", TO_SEE_S)
    all_take_part(run, (1,))
    assert says(run, "stuck")
    (folder / "step-0").unlink()
    all_take_part(run)
    assert says(run, "ready")
    assert run.child("worker 0").page("actor")["rollouts_cut"] == 0
    assert log(run).count(" hosting ") == 1, "the sessions of before"
    assert {
        reason for role in HOSTED["worker"] for page in run.pages(role) for reason in page.get("refused_by_reason", {})
    } == set()


def test_environments_that_take_seconds_to_be_made_hold_up_their_worker_alone(run: ThrowawayRun, folder: Path) -> None:
    all_take_part(run)
    run.end(["worker 0"], signal.SIGKILL)
    (folder / "make-0").write_text("wait")
    run.restart("worker 0")
    run.wait_for(lambda: " ready" in log(run).rpartition("zerobeast")[2], "it is not there", TO_SEE_S)
    all_take_part(run, (1,))
    assert says(run, "starting")
    (folder / "make-0").unlink()
    all_take_part(run)
    assert says(run, "ready")


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        ("abort", "worker 0 was killed by SIGABRT"),
        ("raise", "environment 'CartPole-v1' has failed: Zero"),
    ],
)
def test_an_environment_that_ends_its_worker_is_named_and_costs_no_other(
    run: ThrowawayRun, folder: Path, deed: str, sentence: str
) -> None:
    all_take_part(run)
    child = run.child("worker 0")
    (folder / "step-0").write_text(deed)
    wait_until(lambda: not child.running, TO_SEE_S)
    assert child.explain().startswith(sentence)
    run.restart("worker 0")
    all_take_part(run)


def test_a_process_of_environments_that_raises_dies_or_hangs_is_replaced_inside_its_worker(tmp_path: Path) -> None:
    once = tmp_path / "once"
    flags = (
        *(*FUSED, "--envserver.step_timeout_s", str(PATIENCE_S), "--actor.envs_per_group", "2"),
        *("--env", ODD, "--env.kwargs", json.dumps({"at": 2, "once": str(once)}), "--preset", "classic"),
    )
    with ThrowawayRun(flags, tmp_path) as run:
        run.start_all()
        run.until_it_trains()
        all_take_part(run)
        for deed in ("raise", "crash", "hang"):
            before = total(run, "env_errors")
            write_atomically(once, deed, durable=False)
            run.wait_for(lambda: total(run, "env_errors") > before, f"{deed} is not counted", TO_SEE_S)  # noqa: B023
            all_take_part(run)
        assert total(run, "env_timeouts") == 1
        assert [page["rollouts_cut"] for page in run.pages("actor")] == [0, 0]
