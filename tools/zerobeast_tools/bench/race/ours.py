"""Our run of a race: `beast train` with evaluations by its evaluator, stopped at the first that reaches the score."""

import contextlib
import math
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.errors import BeastError
from zerobeast.common.files import run_files
from zerobeast.common.files.evaluations import Row, read_evaluations
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.launcher.private_folder import private_folder
from zerobeast.version import __version__
from zerobeast_tools.bench.checkout import HERE, beast_command
from zerobeast_tools.bench.race.field import Task

NAME = "run"
STOP_LIMIT_S = 60.0
LOOK_S = 0.5


def race_ours(task: Task, seed: int, eval_seed: int, limit_s: float, log: Path) -> dict[str, Any]:
    """Train until the threshold, the run's last step or the limit; returns fields of a `Result`.

    Args:
      task: what is trained, by our entry's algorithm.
      seed: of the run.
      eval_seed: of its evaluations.
      limit_s: seconds of wall time.
      log: file for what the command prints.

    Raises:
      BeastError: the run has failed.
    """
    flags: tuple[str, ...] = (
        "--env",
        task.env,
        "--algo",
        task.entries[0].settings,
        "--seed",
        str(seed),
        "--name",
        NAME,
    )
    how = {"every_steps": task.every, "episodes": task.episodes, "seed": eval_seed}
    flags += tuple(text for name, value in how.items() for text in (f"--evaluate.{name}", str(value)))
    with private_folder() as folder, log.open("wb") as output:
        run, started, startup_s = folder / NAME, time.monotonic(), math.inf
        line, environ = beast_command(HERE, "train", *flags, "--root", str(folder))
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(line, env=environ, cwd=folder, **streams)
        try:
            learner_s = 0.0
            while process.poll() is None and learner_s < limit_s and not _has_reached(run, task):
                time.sleep(LOOK_S)  # perhaps until long after the last step, since policies wait to be evaluated
                if learner_s := _learner_s(run):  # a page is late by what it waited for: the earliest start is the best
                    startup_s = min(startup_s, time.monotonic() - started - learner_s)
        finally:
            by_itself = process.poll()
            _stop(process)
        if by_itself:
            raise BeastError(f"beast train ended with {by_itself}; its log: {log}")
        return judge(read_evaluations(run), task, startup_s, limit_s, whole=by_itself is not None)


def judge(rows: Sequence[Row], task: Task, startup_s: float, limit_s: float, *, whole: bool) -> dict[str, Any]:
    """The outcome of a run.

    Args:
      rows: of its evaluations, oldest first, with seconds of the learner's clock.
      task: with the threshold.
      startup_s: seconds from the start of the command to the start of that clock.
      limit_s: seconds after which it was stopped, unless it took all its steps.
      whole: whether it did, and all its policies were evaluated.
    """
    row = next((row for row in rows if row["mean_return"] >= task.threshold), rows[-1] if rows else {})
    score = row.get("mean_return")
    reached = score is not None and score >= task.threshold
    seconds = startup_s + row["elapsed_s"] if reached or (whole and row) else limit_s
    ended = "threshold" if reached else "script" if whole else "limit"
    found = {"ended": ended, "seconds": round(seconds, 1), "agent_steps": int(row.get("agent_steps", 0))}
    return {**found, "score": score, "version": __version__}


def _has_reached(run: Path, task: Task) -> bool:
    return any(row["mean_return"] >= task.threshold for row in read_evaluations(run))


def _learner_s(run: Path) -> float:
    """Seconds on the learner's clock, or 0 if it does not answer."""
    page = fetch_announced_page(run / run_files.SERVICES / "learner-0.json", remote=False)
    return float(page["uptime_s"]) if page else 0.0


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    process.kill()
    process.wait()
