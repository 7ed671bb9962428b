"""`beast bench all`: every benchmark one after the other, and one table of what each found beside its goal.

Nothing else should run meanwhile. Each benchmark is a process of its own, so that none disturbs the next.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from zerobeast.tools.bench.figures import Figure, Goal, figure, table
from zerobeast.tools.bench.latency import ADDED_MS
from zerobeast.tools.bench.options import emit
from zerobeast.tools.bench.scale import FLAT

STEPS_S = "agent steps/s"
OUTSIDE = Goal("<=", 0.1)
AT_WORK = Goal(">=", 0.85, of_ratio=True)
CARTPOLE_RATE = Goal(">=", 25_000)
ENCRYPTED = Goal(">=", 0.9, of_ratio=True)
GROWTH = Goal("<=", 60)  #: MiB an hour: less than what the allocator's own noise makes of half an hour


class Entry(NamedTuple):
    """One benchmark of the report."""

    argv: str
    read: Callable[[Any], list[Figure]]  #: its JSON -> figures
    long: bool = False  #: takes minutes, or installs something: left out of a short report


def _training(what: str, goal: float) -> Callable[[Any], list[Figure]]:
    def read(result: Any) -> list[Figure]:
        limit, at_work = result["machine"]["best"], result["machine"]["at_work"]["limit"][result["precision"]]
        return [
            figure(f"{what}: rate over the limit", result["rate"], STEPS_S, Goal(">=", goal, of_ratio=True), limit),
            figure(f"{what}: over the limit with all cores at work", result["rate"], STEPS_S, AT_WORK, at_work),
            figure(f"{what}: CPU outside the three parts", result["cpu_outside"], "of all", OUTSIDE),
        ]

    return read


def _latency(result: Any) -> list[Figure]:
    rates = result["rates"]
    return [
        figure(f"{added:g} ms added", rates[f"{added:g} ms"], STEPS_S, Goal(">=", least, of_ratio=True), rates["0 ms"])
        for added, least in ADDED_MS.items()
    ]


def _peers(result: Any) -> list[Figure]:
    goal = Goal(">=", result["goal"], of_ratio=True)
    ours = next(row["rate"] for row in result["rows"] if row["ratio"] is None)
    return [
        figure(f"ours over {row['peer']}", ours, STEPS_S, goal, row["rate"]) for row in result["rows"] if row["ratio"]
    ]


def _memory(result: Any) -> list[Figure]:
    return [
        figure(f"{role}: growth of memory", found["mib_per_hour"], "MiB/hour", GROWTH)
        for role, found in result["growth"].items()
    ]


def _cartpole(result: Any) -> list[Figure]:
    return [figure("CartPole, 2 x 64 environments", result["rate"], STEPS_S, CARTPOLE_RATE)]


def _scale(result: Any) -> list[Figure]:
    return [figure("1 to 64 actors: left of the best rate", result["left"], "of it", Goal(">=", FLAT))]


def _keys(result: Any) -> list[Figure]:
    plain, encrypted = (fmean(result["rates"][name]) for name in ("without keys", "with keys"))
    return [figure("over tcp with keys", encrypted, STEPS_S, ENCRYPTED, plain)]


def _figures(result: Any) -> list[Figure]:
    return [Figure(**entry) for entry in result]


ENTRIES = (
    Entry("train", _training("Pong", 0.85)),
    Entry("train --net.torso deep", _training("deep network", 0.8)),
    Entry("train --net.use_lstm true", _training("LSTM", 0.8)),
    Entry("train --env CartPole-v1 --actor.envs_per_group 64 --learner.batch_size 32", _cartpole),
    Entry("latency", _latency),
    Entry("keys", _keys),
    Entry("scale", _scale),
    Entry("broker", _figures),
    Entry("steps", _figures),
    Entry("rollouts", _figures),
    Entry("weights", _figures),
    Entry("peers", _peers, long=True),
    Entry("memory", _memory, long=True),
)


def main(argv: list[str]) -> int:
    """`beast bench all`; exit code 1 where a benchmark failed."""
    parser = argparse.ArgumentParser(prog="beast bench all", description=__doc__, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="leave out peers and memory, which take half an hour")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    options = parser.parse_args(argv)
    figures: list[Figure] = []
    failed = []
    for entry in ENTRIES:
        if options.short and entry.long:
            continue
        sys.stderr.write(f"beast bench {entry.argv}\n")
        result = _run(entry.argv)
        if result is None:
            failed.append(entry.argv)
        else:
            figures += entry.read(result)
    lines = [table(figures), *(f"beast bench {argv}: failed, see above" for argv in failed)]
    emit([entry._asdict() for entry in figures], "\n".join(lines), options.json)
    return 1 if failed else 0


def _run(argv: str) -> Any:
    """What a benchmark writes as JSON, or None where it failed."""
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "zerobeast", "bench", *argv.split(), "--json", str(out)]
        ended = subprocess.run(command, stdout=sys.stderr, check=False)
        return json.loads(out.read_text()) if ended.returncode == 0 else None
