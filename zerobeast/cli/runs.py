"""`beast runs`: every run in a folder, with its state and scores."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from zerobeast import commands
from zerobeast.common.files import run_files
from zerobeast.results.comparison import duration, short
from zerobeast.results.overview import Overview, folders, overview

DESCRIPTION = """Every run in a folder, the one that was written to last first.

Scores are mean returns, of evaluations if the run has some, or else of the last 100 training episodes. A run is
  running   while a launcher or a learner of this machine holds its lock
  done      after total_steps, or at stop_at_return
  stopped   with a checkpoint, from which `beast train --name` goes on
  failed    if it was started and has no checkpoint
  unknown   if its folder does not show that
Its age is the time since something was last written."""
HEADER = ("name", "env", "algo", "state", "steps", "of", "last", "best", "score of", "age", "size")
RIGHT = {"steps", "of", "last", "best", "age", "size"}


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
      ConfigError: there is no such folder.
    """
    parser = commands.parser("beast runs", DESCRIPTION)
    parser.add_argument("--root", default=run_files.ROOT, help="folder of run folders; default %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    flags = parser.parse_args(argv)
    now = time.time()
    found = [overview(folder, now) for folder in folders(Path(flags.root).expanduser())]
    found.sort(key=lambda run: run.age_s)
    if flags.json:
        sys.stdout.write(json.dumps([run._asdict() for run in found], indent=1) + "\n")
        return 0
    if not found:
        sys.stdout.write(f"no runs in {flags.root}\n")
        return 0
    table = [HEADER, *map(_cells, found)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sys.stdout.writelines(_line(cells, widths) for cells in table)
    sys.stderr.writelines(f"{run.name}: {run.trouble}\n" for run in found if run.trouble)
    return 0


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    placed = zip(HEADER, cells, widths, strict=True)
    return "  ".join(f"{cell:{'>' if name in RIGHT else '<'}{width}}" for name, cell, width in placed).rstrip() + "\n"


def _cells(run: Overview) -> list[str]:
    steps, total = (f"{number:,}" if number is not None else "-" for number in (run.agent_steps, run.total_steps))
    last, best = (short(score) if score is not None else "-" for score in (run.last_score, run.best_score))
    env, algo, score_of = run.env or "-", run.algo or "-", run.score_of if run.last_score is not None else "-"
    age, size = duration(float(round(run.age_s))), _size(run.size_bytes)
    return [run.name, env, algo, run.state, steps, total, last, best, score_of, age, size]


def _size(number: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number} B"
