"""All runs in a folder at a glance, fast: of a table of metrics only what is shown is read."""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.text import printable
from zerobeast.results.run import SavedRun, number, read

RUNNING, DONE, STOPPED, FAILED, UNKNOWN = "running", "done", "stopped", "failed", "unknown"
LOCKS = (run_files.LAUNCHER_LOCK, run_files.LEARNER_LOCK)
SIGNS = (run_files.CONFIG, run_files.METRICS, run_files.EVALUATIONS, run_files.CHECKPOINT)  #: of a run in a folder
STEPS, RETURN = "agent_steps", "mean_return_100"


class Overview(NamedTuple):
    """A run at a glance; None: not known."""

    name: str
    env: str
    algo: str
    state: str
    agent_steps: int | None
    total_steps: int | None
    last_score: float | None
    best_score: float | None
    score_of: str  #: evaluation or training
    age_s: float  #: since something was last written
    size_bytes: int  #: of all of its files
    trouble: str  #: what cannot be read, as a sentence


class Scores(NamedTuple):
    """Where a run is."""

    of: str
    steps: int | None
    last: float | None
    best: float | None


def folders(root: Path) -> list[Path]:
    """The folders that look like runs.

    Raises:
      ConfigError: there is no such folder.
    """
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise ConfigError(f"{root}: {error.strerror or error}; --root names another folder of runs") from error
    return [root / name for name in sorted(names) if any(os.path.lexists(root / name / sign) for sign in SIGNS)]


def overview(folder: Path, now: float) -> Overview:
    """A run at a glance, whatever is wrong with it.

    Args:
      folder: of the run.
      now: the time since the epoch.
    """
    troubles = list[str]()
    run = SavedRun(folder, {})
    scores = Scores("", None, None, None)
    try:
        run = read(folder)
    except ConfigError as error:
        troubles.append(str(error))
    try:
        scores = scores_of(run)
    except ConfigError as error:
        troubles.append(str(error))
    total, goal = (_number(run.settings.get(path)) for path in ("total_steps", "stop_at_return"))
    finished = total is not None and scores.steps is not None and scores.steps >= total
    finished |= goal is not None and scores.last is not None and scores.last >= goal
    return Overview(
        name=run.name,
        env=run.env,
        algo=run.algo,
        state=_state(folder, finished=finished, known=bool(run.settings)),
        agent_steps=scores.steps,
        total_steps=None if total is None else int(total),
        last_score=scores.last,
        best_score=scores.best,
        score_of=scores.of,
        age_s=max(0.0, now - max(map(_changed_at, [folder, *(folder / sign for sign in SIGNS)]))),
        size_bytes=sum(_sizes(folder)),
        trouble=printable("; ".join(troubles).encode(errors="replace").decode()),
    )


def _state(folder: Path, *, finished: bool, known: bool) -> str:
    """Running: somebody holds its lock. Failed: it was started and ended before its first checkpoint."""
    if any(run_files.is_held(folder / name) for name in LOCKS):
        return RUNNING
    if finished:
        return DONE
    if any((folder / name).exists() for name in (run_files.CHECKPOINT, run_files.PREVIOUS_CHECKPOINT)):
        return STOPPED
    return FAILED if known and any((folder / name).exists() for name in LOCKS) else UNKNOWN


def scores_of(run: SavedRun) -> Scores:
    """Steps, last and best score of a run: of its evaluations if there are any, or else of training.

    Raises:
      ConfigError: a table cannot be read.
    """
    trained = _trained(run.folder / run_files.METRICS)
    by_steps: dict[int, list[float]] = {}
    for row in run.evaluations:
        by_steps.setdefault(row.get(STEPS) or 0, []).append(row["mean_return"])
    means = [sum(values) / len(values) for values in by_steps.values()]
    if not means:
        return trained
    steps = max(trained.steps or 0, *by_steps)
    return Scores("evaluation", steps, means[-1], max(means))


def _trained(path: Path) -> Scores:
    """What metrics.csv says, of which only two columns are read."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    header, *rows = data[: data.rfind(b"\n") + 1].splitlines() or [b""]
    names = header.decode(errors="replace").split(",")
    if not {STEPS, RETURN} <= set(names):
        return Scores("training", None, None, None)
    returns = [value for value in _column(rows, names.index(RETURN)) if math.isfinite(value)]
    steps = next((value for value in _column(reversed(rows), names.index(STEPS)) if math.isfinite(value)), None)
    last, best = (returns[-1], max(returns)) if returns else (None, None)
    return Scores("training", None if steps is None else int(steps), last, best)


def _column(rows: Iterable[bytes], place: int) -> Iterator[float]:
    """A column of numbers, among which nothing is quoted."""
    for row in rows:
        cells = row.split(b",", place + 1)
        if len(cells) > place:
            yield number(cells[place])


def _number(value: object) -> float | None:
    with contextlib.suppress(OverflowError):
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    return None


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _sizes(folder: Path | str) -> Iterator[int]:
    """Bytes of every file below a folder, without following links."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes(entry.path)
            else:
                with contextlib.suppress(OSError):
                    yield entry.stat(follow_symlinks=False).st_size
