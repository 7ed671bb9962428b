"""Benchmarks that spread work over a pool take its processes down with them, however they end."""

import os
import signal

import psutil
import pytest

from tests.helpers import ROOT, killed_at_last, python, wait_until

STALE = ("stale", "--env", "CartPole-v1", "--algos", "a2c", "--seeds", "2", "--total_steps", "1000000000")
LIMIT = ("limit", "--env", "CartPole-v1", "--seconds", "60")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a pool for one core is this process")
@pytest.mark.parametrize(
    ("argv", "number"),
    [(STALE, signal.SIGINT), (LIMIT, signal.SIGKILL)],
    ids=["stale-SIGINT", "limit-SIGKILL"],
)
def test_no_process_outlives_a_benchmark_that_was_ended(argv: tuple[str, ...], number: signal.Signals) -> None:
    process = python("-m", "zerobeast", "bench", *argv, cwd=ROOT)
    with killed_at_last(process):
        pool = wait_until(lambda: _at_work(process.pid), timeout_s=250)
        process.send_signal(number)
        wait_until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in pool))


def _at_work(pid: int) -> list[psutil.Process]:
    """The processes that the benchmark has started, once there are several that have used some CPU time."""
    found = psutil.Process(pid).children(recursive=True)
    return found if len(found) > 2 and sum(each.cpu_times().user for each in found) > 2.0 else []
