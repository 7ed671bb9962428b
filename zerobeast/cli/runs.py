"""List the runs in a folder, most recently written first, and the progress of each sweep.

Scores are mean returns: of evaluations if the run has any, otherwise of the last 100 training episodes. States are
  running   a launcher or learner on this machine holds the run's lock
  done      the run has reached total_steps or stop_at_return
  stopped   there is a checkpoint, from which `beast train --name` resumes
  failed    the run was started but has no checkpoint
  unknown   the folder does not show the state
The age is the time since the last write. --json also lists the runs of sweeps, as SWEEP/RUN.
"""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerobeast import commands
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.health.figures import UNKNOWN, format_count, format_duration, format_size
from zerobeast.common.health.service_table import align_columns
from zerobeast.common.process.terminal import write
from zerobeast.results.comparison import format_short
from zerobeast.results.overview import find_folders, summarize_run
from zerobeast.sweeping.journal import summarize_sweep

HEADER = ("name", "env", "algo", "state", "steps", "of", "last", "best", "score of", "age", "size")
LEFT_COLUMNS = {"name", "env", "algo", "state", "score of"}


def main(argv: list[str]) -> int:
    """Run `beast runs`. Raises ConfigError if there is no such folder."""
    parser = commands.make_parser("beast runs", __doc__)
    commands.add_root(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    flags = parser.parse_args(argv)
    now = time.time()
    root = Path(flags.root).expanduser()
    sweeps = [file.parent for file in sorted(root.glob(f"*/{run_files.SWEEP}"))]
    found = [summarize_run(folder, now) for folder in find_folders(root)]
    for place in sweeps if flags.json else ():
        found += [
            run | {"name": f"{place.name}/{run['name']}"}
            for run in (summarize_run(f, now) for f in find_folders(place))
        ]
    found.sort(key=lambda run: run["age_s"])
    if flags.json:
        write(json.dumps(found, indent=1))
        return 0
    if found or not sweeps:
        write(align_columns([HEADER, *map(_cells, found)], LEFT_COLUMNS) if found else f"no runs in {flags.root}")
    for place in sweeps:
        try:
            write(f"{summarize_sweep(place)}: beast runs --root {shlex.quote(str(place))}")
        except ConfigError as error:
            write(str(error), sys.stderr)
    write("".join(f"{run['name']}: {run['trouble']}\n" for run in found if run["trouble"]), sys.stderr, end="")
    return 0


def _cells(run: Mapping[str, Any]) -> list[str]:
    last, best = (UNKNOWN if run[name] is None else format_short(run[name]) for name in ("last_score", "best_score"))
    scores = [last, best, UNKNOWN if run["last_score"] is None else run["score_of"]]
    about = [run["name"], run["env"] or UNKNOWN, run["algo"] or UNKNOWN, run["state"]]
    steps = [format_count(run["agent_steps"]), format_count(run["total_steps"])]
    return [*about, *steps, *scores, format_duration(run["age_s"]), format_size(run["size_bytes"])]
