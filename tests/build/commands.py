"""`beast` in a process of its own, as a user types it, and what its runs leave in their folders."""

import csv
import json
import math
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.helpers import ROOT, killed_at_last, python, wait_for_end

LIMIT_S = 800
SMALL = ("--env", "CartPole-v1", "--net.hidden_size", "16", "--local.workers", "1")
TASKS = "tests.build.tasks"


def beast(*argv: str | Path, **variables: str) -> subprocess.Popen[str]:
    """Start a command."""
    return python("-m", "zerobeast", *argv, variables=variables)


def done(*argv: str | Path) -> str:
    """Run a command, which has to succeed; returns its output."""
    code, out, error = wait_for_end(beast(*argv))
    assert code == 0, (out + error)[-3000:]
    return out


def evaluate_run(*argv: str | Path) -> list[dict[str, Any]]:
    """Evaluate; returns the result of each environment."""
    return [json.loads(line) for line in done("evaluate", *argv, "--json").splitlines()]


def train(folder: Path, *flags: str, goal: float | None = None, workers: int = 1) -> list[dict[str, str]]:
    """Run `beast train` to its end, or until its mean return reaches the goal; return the rows of metrics.csv.

    Most policies of tests are learned in less time than another worker takes to start. 0: one for each core.
    """
    until = [] if goal is None else ["--stop_at_return", str(goal)]
    where = ("--root", str(folder.parent), "--name", folder.name, "--local.workers", str(workers))
    argv = ("train", "--plain", *where, "--learner.log_every_s", "1", *flags, *until)
    with folder.with_suffix(".out").open("w") as out:
        process = python("-m", "zerobeast", *argv, cwd=ROOT, stdout=out, stderr=out)
    with killed_at_last(process):
        assert process.wait(LIMIT_S) == 0, folder.with_suffix(".out").read_text()[-3000:]
    return rows_of(folder)


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv so far, without a line that is still being written."""
    file = folder / "metrics.csv"
    whole, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
    return list(csv.DictReader(whole.splitlines()))


def best(rows: list[dict[str, str]]) -> float:
    """The highest mean return of 100 episodes."""
    return max((float(row["mean_return_100"]) for row in rows if row["mean_return_100"]), default=-math.inf)


def steps(folder: Path) -> int:
    """Agent steps of the newest row of metrics."""
    return int(rows[-1]["agent_steps"]) if (rows := rows_of(folder)) else 0


def pid_of(folder: Path, service: str) -> int:
    """The process of a service, such as `learner-0`."""
    return int(json.loads((folder / "services" / f"{service}.json").read_text())["pid"])


def pids(folder: Path) -> dict[str, int]:
    """The processes that a run has announced, by service."""
    return dict(_announced(folder))


def _announced(folder: Path) -> Iterator[tuple[str, int]]:
    for path in (folder / "services").glob("*.json"):
        with suppress(FileNotFoundError):  # the file of a service that is started again is gone for a moment
            yield path.stem, pid_of(folder, path.stem)


def alive(folder: Path) -> list[int]:
    """Those that exist."""
    return [pid for pid in set(pids(folder).values()) if psutil.pid_exists(pid)]


def program(path: Path, text: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
