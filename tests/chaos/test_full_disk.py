"""The learner's disk is really full for a while: training goes on, existing files stay whole, and it recovers."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import Note
from tests.chaos.learner_on_a_small_disk import OWN_DISK
from tests.chaos.runs import TINY, log, page, wait_for, wait_for_learning
from tests.helpers import wait_until
from zerobeast.common.files import run_files
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.verdict import judge
from zerobeast.common.process.roles import ROLES
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast_tools.chaos.inject import disturbed_run
from zerobeast_tools.chaos.watch import RunWatch

pytestmark = pytest.mark.timeout(600)

FAULTS = ("the checkpoint cannot be written: No space left on device", "metrics are lost: No space left on device")


def rows(folder: Path) -> int:
    """The number of rows of metrics.csv, every one of which must be whole."""
    text = (folder / "metrics.csv").read_text()
    assert text.endswith("\n")
    assert len({line.count(",") for line in text.splitlines()}) == 1, text
    return text.count("\n") - 1


def saved_steps(folder: Path) -> int:
    state = load_checkpoint(folder / run_files.CHECKPOINT)
    return int(state["counters"]["agent_steps"])


def full(watch: RunWatch) -> bool:
    """Whether the learner says that nothing can be written."""
    return all(fault in str(page(watch.fleet, "learner").get("unsaved")) for fault in FAULTS)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("ab", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def test_training_goes_on_when_the_disk_is_full_and_recovers_when_there_is_room(tmp_path: Path, note: Note) -> None:
    if subprocess.run([*OWN_DISK, f"mount -t tmpfs none {tmp_path}"], check=False).returncode:
        pytest.skip("this system allows no mounts")
    with disturbed_run(TINY, tmp_path, modules={"learner": "tests.chaos.learner_on_a_small_disk"}) as injector:
        watch, fleet = injector.watch, injector.fleet
        folder = Path(f"/proc/{fleet.child('learner 0').pid}/root{fleet.config.folder}")
        ballast = folder / "ballast"
        wait_for(watch, lambda: (folder / run_files.PREVIOUS_CHECKPOINT).exists() and rows(folder) > 1)

        fill(ballast)
        wait_for(watch, lambda: full(watch))
        assert wait_for_learning(watch, 200)
        wait_until(lambda: not (folder / run_files.CHECKPOINT_DRAFT).exists())
        kept = rows(folder), saved_steps(folder)
        assert page(fleet, "learner")["write_errors"] > 1
        assert judge([ServiceView(role, role, page(fleet, role)) for role in ROLES]).sentence.startswith(
            "unhealthy: not saved: "
        )

        ballast.unlink()
        since = time.monotonic()
        wait_for(watch, lambda: page(fleet, "learner").get("unsaved") == "")
        note("the learner's disk is full", since)
        wait_for(watch, lambda: rows(folder) > kept[0] and saved_steps(folder) > kept[1])

        fill(ballast)
        wait_for(watch, lambda: full(watch))
        assert fleet.end(["learner 0"], signal.SIGTERM) == {"learner 0": 75}, "the last checkpoint has to succeed"
        assert FAULTS[0] in log(fleet, "learner").splitlines()[-1]
