"""`beast bench stale` takes its processes along, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
RUNS = ("--env", "CartPole-v1", "--algos", "a2c", "--seeds", "2", "--total_steps", "1000000000")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_run_outlives_a_command_that_was_ended(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "deploy.cli", "bench", "stale", *RUNS]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as it:
        try:
            runs = wait_until(lambda: _at_work(it.pid), timeout_s=60)
        finally:
            it.send_signal(number)
        wait_until(lambda: not any(run.is_running() and run.status() != psutil.STATUS_ZOMBIE for run in runs))


def _at_work(pid: int) -> list[psutil.Process]:
    """The processes that train, once they have used some time."""
    found = psutil.Process(pid).children(recursive=True)
    return found if sum(run.cpu_times().user > 3.0 for run in found) else []
