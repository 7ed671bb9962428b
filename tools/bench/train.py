"""The steady training rate of the real system, beside the limit measured in the same run.

A shared machine changes its speed from minute to minute. So the two take turns: a slice of training, then the services
are stopped in their tracks while the parts are measured, then they go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast.common.health.pages import announced_page
from zerobeast.common.runtime import run_files
from zerobeast.tools.bench import limit
from zerobeast.tools.bench.options import emit, parse
from zerobeast.tools.bench.paused import paused

START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
TURN_S = 10.0
SETTLING_S = 2.0  #: after a pause: caches and queues fill


class Training(NamedTuple):
    """What was seen of a run between two moments."""

    rate: float  #: agent steps a second
    cpu_s: dict[str, float]  #: role -> CPU seconds a second of its services
    pages: dict[str, dict[str, Any]]  #: the newest health page of each role


def main(argv: list[str]) -> int:
    """`beast bench train`: limit and training in turn, then the ratio."""
    options, config, flags = parse("train", argv, seconds=60.0, warmup=20.0, part=0.5)
    with limit.Yardstick(config) as yardstick:
        best = yardstick.measure(options.part)["limit"]
        run, machine = measure_in_turn(flags, yardstick, options, max(best, key=lambda name: best[name]))
    precision = str(run.pages["learner"]["precision"])
    result = {
        "machine": machine,
        "rate": run.rate,
        "ratio": run.rate / machine["best"],
        "ratio_same_precision": run.rate / machine["limit"][precision],
        "ratio_at_work": run.rate / machine["at_work"]["limit"][precision],
        "env_only": machine["cores"] * machine["at_work"]["env"],  # the yardstick where a GPU does all the rest
        "cpu_s_per_s": run.cpu_s,
        "cpu_outside": 1 - run.rate * limit.cost_s(machine["at_work"], precision) / sum(run.cpu_s.values()),
        "precision": precision,
        "seconds": options.seconds,
        "pages": run.pages,
    }
    emit(result, f"{limit.describe(machine)}\n{_describe(result)}", options.json)
    return 0


def _describe(result: dict[str, Any]) -> str:
    pages = result["pages"]
    keys = {
        "learner": ("waiting_fraction", "policy_lag_mean", "queue_rows"),
        "broker": ("busy_fraction", "batch_rows_mean"),
        "actor": ("waiting_env_fraction", "waiting_broker_fraction", "waiting_credit_fraction"),
        "envserver": ("busy_fraction",),
    }
    lines = [
        f"  training, all services  {result['rate']:9.0f}   over {result['seconds']:.0f} s, {result['precision']}",
        f"  ratio to the limit      {result['ratio']:9.2f}   same precision: {result['ratio_same_precision']:.2f}, "
        f"all cores at work: {result['ratio_at_work']:.2f}",
        f"  environments alone      {result['env_only']:9.0f}   on all cores, of which that is {_share(result)}",
        f"  CPU outside the parts   {result['cpu_outside']:9.1%}   of {_cores(result['cpu_s_per_s'])}",
    ]
    for role, names in keys.items():
        page = pages.get(role, {})
        lines.append(f"  {role:<10} " + "  ".join(f"{name} {page.get(name)}" for name in names))
    return "\n".join(lines)


def _share(result: dict[str, Any]) -> str:
    return f"{result['rate'] / result['env_only']:.2f}"


def _cores(used: dict[str, float]) -> str:
    parts = ", ".join(f"{role} {share:.2f}" for role, share in used.items())
    return f"{sum(used.values()):.2f} cores in use: {parts}"


def measure(flags: list[str], warmup_s: float, seconds: float) -> Training:
    """Train for a while in a throw-away folder.

    Args:
      flags: settings of the run.
      warmup_s: seconds of training before measuring begins.
      seconds: to measure.

    Raises:
      BeastError: it does not train.
    """
    with training(flags) as services:
        time.sleep(warmup_s)
        return watch(services, seconds)


def measure_in_turn(
    flags: list[str], yardstick: limit.Yardstick, options: argparse.Namespace, best: str
) -> tuple[Training, dict[str, Any]]:
    """Train and measure the limit in turn.

    Args:
      flags: settings of the run.
      yardstick: what to hold it against.
      options: `warmup`, `seconds` of training in all, and seconds of each `part` of the limit in each turn.
      best: the precision with the highest limit; the run's own is measured too.

    Returns:
      The means of both.

    Raises:
      BeastError: it does not train.
    """
    turns = max(1, round(options.seconds / TURN_S))
    runs, machines = [], []
    with training(flags) as services:
        time.sleep(options.warmup)
        own = next(str(page["precision"]) for page in pages_in(services) if "precision" in page)
        for _ in range(turns):
            with paused(services):
                machines.append(yardstick.measure(options.part, list(dict.fromkeys([best, own]))))
            time.sleep(SETTLING_S)
            runs.append(watch(services, options.seconds / turns))
    whole = limit.mean(machines)
    machine = limit.combined(_rates(whole), _rates(whole["at_work"]))
    cpu_s = limit.mean([run.cpu_s for run in runs])
    return Training(fmean(run.rate for run in runs), cpu_s, runs[-1].pages), machine


def _rates(measured: dict[str, Any]) -> dict[str, Any]:
    return {name: measured[name] for name in ("env_id", "env", "inference", "training") if name in measured}


def watch(services: Path, seconds: float) -> Training:
    """What is seen of a run's services in the next `seconds`."""
    start = _Moment(services)
    time.sleep(seconds)
    return _Moment(services).since(start)


@contextlib.contextmanager
def training(flags: list[str]) -> Iterator[Path]:
    """`beast train` in a throw-away folder, from its first update on.

    Yields:
      The folder in which its services announce their health pages.

    Raises:
      BeastError: it does not train.
    """
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as root:
        command = [sys.executable, "-m", "zerobeast", "train", *flags]
        command += ["--plain", "--root", root, "--name", "bench", "--total_steps", str(10**9)]
        log = Path(root) / "train.log"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))
            try:
                services = Path(root) / "bench" / run_files.SERVICES
                _wait_for_steps(process, services, log)
                yield services
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def pages_in(services: Path) -> list[dict[str, Any]]:
    """The health pages of all services that answer."""
    found = (announced_page(path) for path in sorted(services.glob("*.json")))
    return [page for page in found if page]


class _Moment:
    """The health pages of all services at one time."""

    def __init__(self, services: Path) -> None:
        self.at = time.monotonic()
        self.pages = pages_in(services)
        self.cpu_s = Counter[str]()
        for page in self.pages:
            self.cpu_s[str(page["role"])] += page["cpu_s"]
        self.by_role = {str(page["role"]): page for page in self.pages}

    def since(self, start: _Moment) -> Training:
        seconds = self.at - start.at
        steps = self.by_role["learner"]["agent_steps"] - start.by_role["learner"]["agent_steps"]
        cpu_s = {role: (spent - start.cpu_s[role]) / seconds for role, spent in self.cpu_s.items()}
        return Training(steps / seconds, cpu_s, self.by_role)


def _wait_for_steps(process: subprocess.Popen[bytes], services: Path, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if any(page.get("updates", 0) > 0 for page in pages_in(services)):
            return
        time.sleep(0.2)
    raise BeastError(f"training did not start:\n{log.read_text()[-2000:]}")
