"""All runs in a folder at a glance, fast: of a table of metrics only what is shown is read."""

import contextlib
import math
import os
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

from zerobeast.common.config.settings_table import LEVELS
from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.files import evaluations, metrics, run_files
from zerobeast.common.text import printable
from zerobeast.results.curves import FULL_WINDOW, RETURNS, TRAINING
from zerobeast.results.run_results import SavedRun, load_run

RUNNING, DONE, STOPPED, FAILED, UNKNOWN = "running", "done", "stopped", "failed", "unknown"
LOCKS = (run_files.LAUNCHER_LOCK, run_files.LEARNER_LOCK)
SIGNS = (run_files.CONFIG, run_files.METRICS, run_files.EVALUATIONS, run_files.CHECKPOINT)  #: of a run in a folder


def find_folders(root: Path) -> list[Path]:
    """The folders that look like runs, and links to such folders elsewhere.

    Raises:
      ConfigError: there is no such folder.
    """
    with raise_as(ConfigError, f"--root {root}", OSError), os.scandir(root) as entries:
        found = sorted(root / entry.name for entry in entries if entry.is_dir())
    home = root.resolve()
    own = (folder for folder in found if not (folder.is_symlink() and folder.resolve().parent == home))
    return [folder for folder in own if any(os.path.lexists(folder / sign) for sign in SIGNS)]


def summarize_run(folder: Path, now: float) -> dict[str, Any]:
    """A run at a glance at this time since the epoch, whatever is wrong with it. What is not known is None.

    Scores are of greedy or sampled evaluations or of training (`score_of`), `age_s` is the time since something was
    last written, and `trouble` a sentence about what cannot be read.
    """
    run, troubles = SavedRun(folder, {}), list[str]()
    steps, last, best, of = None, None, None, ""
    try:
        run = load_run(folder)
    except ConfigError as error:
        troubles.append(str(error))
    try:
        steps, last, best, of = _scores(run)
    except ConfigError as error:
        troubles.append(str(error))
    troubles += filter(None, [metrics.describe_lost_episodes(folder)])
    files = [*_files(folder)]
    total = found if isinstance(found := run.settings.get("total_steps"), int) else None
    finished = (folder / run_files.REACHED_FILE).exists() or (
        steps is not None and total is not None and steps >= total
    )
    return {
        "name": run.name,
        "env": run.env,
        "algo": run.algo,
        "state": run_state(folder, finished=finished, known=bool(run.settings)),
        "agent_steps": steps,
        "total_steps": total,
        "last_score": last,
        "best_score": best,
        "score_of": of,
        "age_s": max(0.0, now - max((file.st_mtime for file in files), default=now)),
        "size_bytes": sum(file.st_size for file in files),
        "trouble": printable("; ".join(troubles).encode(errors="replace").decode()),
    }


def run_state(folder: Path, *, finished: bool, known: bool) -> str:
    """Running: somebody holds its lock. Failed: it was started and ended before its first checkpoint, at any step."""
    if any(run_files.is_held(folder / name) for name in LOCKS):
        return RUNNING
    saved = any((folder / name).exists() for name in (run_files.CHECKPOINT, run_files.PREVIOUS_CHECKPOINT))
    if known and not saved and any((folder / name).exists() for name in LOCKS):
        return FAILED
    return DONE if finished else STOPPED if saved else UNKNOWN


def _scores(run: SavedRun) -> tuple[int | None, float | None, float | None, str]:
    """Steps, last and best score, and of what: of evaluations like the newest if there are any, or else of training.

    Raises:
      ConfigError: a table cannot be read.
    """
    columns = (run.metrics.get(name, ()) for name in ("agent_steps", RETURNS[TRAINING]))
    steps, returns = ([*filter(math.isfinite, column)] for column in columns)  # what is known of each
    counts = run.metrics.get("episodes", repeat(FULL_WINDOW))
    means = zip(run.metrics.get(RETURNS[TRAINING], ()), counts, strict=False)
    whole = [mean for mean, count in means if math.isfinite(mean) and count >= FULL_WINDOW]  # as for `stop_at_return`
    first = evaluations.first_level(str(run.settings.get(LEVELS) or ""))
    kind = (run.evaluations[-1].get("actions") or "") if run.evaluations else ""
    evaluated = evaluations.scores(run.evaluations, [first], kind)
    done = max([*steps[-1:], *evaluated], default=None)
    scores, candidates = [*evaluated.values()] or returns, [*evaluated.values()] or whole
    last, best = scores[-1] if scores else None, max(candidates, default=None)
    return None if done is None else int(done), last, best, f"{kind} evaluation".strip() if evaluated else "training"


def _files(folder: Path) -> Iterator[os.stat_result]:
    """The status of every file below a folder, without following links."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(place, name))
