"""Curves of runs: a column over steps, frames or time, and the mean of several seeds."""

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations
from zerobeast.common.settings.evaluate import EvaluateConfig
from zerobeast.common.text import suggestion
from zerobeast.results.run_results import SavedRun
from zerobeast.results.statistics import Values, interval

TRAINING, EVALUATION = "training", "evaluation"
RETURNS = {TRAINING: "mean_return_100", EVALUATION: "mean_return"}
MEANINGS = {TRAINING: "training return (mean of up to 100 episodes)", EVALUATION: "evaluation return"}
FULL_WINDOW = 100  #: episodes of a whole mean of training
AXES = {"steps": "agent_steps", "frames": "env_frames", "time": "elapsed_s"}
POINTS = 200  #: at most, of a mean

#: what rows of evaluations have in common: their `env`, their kind of `actions`, or nothing
Where = Mapping[str, str]
ALL_ROWS: Where = MappingProxyType({})


class Curve(NamedTuple):
    """Points of a run."""

    x: Values  #: [points], rising
    y: Values  #: [points]


class MeanCurve(NamedTuple):
    """The mean of several runs."""

    x: Values  #: [points], rising
    mean: Values  #: [points]
    low: Values | None  #: [points], of the 95 % bootstrap interval; None for a single run
    high: Values | None


def describe_meaning(of: str, runs: Sequence[SavedRun], where: Where = ALL_ROWS) -> str:
    """What a value is; that of evaluations with how they were made, as far as all were made alike."""
    rows = [row for run in runs for row in select_evaluations(run, where)] if of == EVALUATION else []
    ways = {str(row.get("actions") or "") for row in rows}
    counts = sorted({row["episodes"] for row in rows if row.get("episodes")})
    episodes = f"{' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} episodes" if counts else ""
    how = ", ".join(filter(None, [*(ways if len(ways) == 1 else ()), episodes]))
    return MEANINGS.get(of, of) + (f" ({how})" if how else "")


def select_evaluations(run: SavedRun, where: Where) -> list[evaluations.Row]:
    """The evaluations of a run that have these cells."""
    return [row for row in run.evaluations if all((row.get(name) or "") == cell for name, cell in where.items())]


def curve(run: SavedRun, x: str, of: str, *, where: Where = ALL_ROWS, smooth: int = 1, full: bool = False) -> Curve:
    """A curve of a run; it is empty if the run has not come that far.

    Args:
      x: a key of `AXES`, or a column of the same table as `of`. Steps and frames of an evaluation are those at which it
        was due, so that those of several seeds are at the same place.
      of: a key of `RETURNS`, or a column of metrics.csv or evaluations.csv.
      where: which evaluations; of several environments the mean.
      smooth: each point is the mean of so many, of which it is the last.
      full: of training, leave out means of fewer than 100 episodes, which the first ones of a run are.

    Raises:
      ConfigError: there is no such column.
    """
    if not run.metrics and not run.evaluations:  # it has just begun
        return Curve(np.empty(0), np.empty(0))
    columns = _table(run, of, where)
    across, up = (_column(columns, name, run) for name in (AXES.get(x, x), RETURNS.get(of, of)))
    across = columns.get(x, across)
    known = np.isfinite(across) & np.isfinite(up)
    if full and of == TRAINING and "episodes" in columns:
        known &= columns["episodes"] >= FULL_WINDOW
    newest = dict(zip(across[known].tolist(), up[known].tolist(), strict=True))  # of points at the same x
    x_values, y_values = np.array(sorted(newest.items()), float).reshape(-1, 2).T
    return Curve(x_values, _smooth(y_values, smooth))


def _table(run: SavedRun, of: str, where: Where) -> Mapping[str, Values]:
    """The table with a column, as it was or as the mean over the environments, with the axes as `curve` has them."""
    if of == TRAINING or (of != EVALUATION and of in run.metrics):
        return run.metrics or dict.fromkeys([RETURNS[TRAINING], *AXES.values()], np.empty(0))
    points = [point for _, point in sorted(evaluations.mean_by_steps(select_evaluations(run, where)).items())]
    known = evaluations.mean_by_steps(run.evaluations).values()
    names = [*AXES.values(), *(name for point in known for name in point)] + [RETURNS[EVALUATION]] * (of == EVALUATION)
    table = {name: np.array([point.get(name, np.nan) for point in points]) for name in dict.fromkeys(names)}
    steps, frames = table[AXES["steps"]], table[AXES["frames"]]
    due = _due_steps(run.settings, steps)
    return table | {"steps": due, "frames": frames * due / np.maximum(steps, 1)}


def _due_steps(settings: Mapping[str, Any], steps: Values) -> Values:
    """The steps at which evaluations were due, by the settings of their run; those at which they were made if unknown.

    These stay as they are, too, if an earlier one is since then, as in a run that has had other settings.
    """
    try:
        given = {name: settings.get(f"evaluate.{name}", 0) for name in ("times", "every_steps")}
        how, total = EvaluateConfig.model_validate(given), int(settings["total_steps"])
        due = np.array([how.due(int(at), total) for at in steps], float)
    except (KeyError, TypeError, ValueError, OverflowError):  # results of another program
        return steps
    return np.where(due > np.append(0, steps)[:-1], due, steps)


def _column(columns: Mapping[str, Values], name: str, run: SavedRun) -> Values:
    if name not in columns:
        known = dict.fromkeys([*RETURNS, *run.metrics, *columns])
        raise ConfigError(f"run {run.name!r} has no column {name!r} there{suggestion(name, known)}")
    return columns[name]


def _smooth(y: Values, smooth: int) -> Values:
    smooth = min(smooth, len(y))
    if smooth <= 1:
        return y
    sums: Values = np.convolve(y, np.ones(smooth))[: len(y)]
    return sums / np.minimum(np.arange(1, len(y) + 1), smooth)


def mean_curve(curves: Sequence[Curve]) -> MeanCurve:
    """The mean over runs where all of them have points, and its 95 % bootstrap interval, at up to 200 places.

    The places are the points of all runs, or if these are too many those that all runs have; if these are less than
    half, they are evenly spaced. The curves overlap (`find_overlapping`).
    """
    first = curves[0]
    if len(curves) == 1:
        return MeanCurve(first.x, first.y, None, None)
    start, end = max(each.x[0] for each in curves), min(each.x[-1] for each in curves)
    inside = [each.x[(start <= each.x) & (each.x <= end)] for each in curves]
    grid = reduce(np.union1d, inside)
    if len(grid) > POINTS:
        grid = reduce(np.intersect1d, inside)
    if 2 * len(grid) < max(map(len, inside)):
        grid = np.linspace(start, end, POINTS)
    grid = np.union1d(grid, [start, end])
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, min(POINTS, len(grid))).astype(int))]
    values = np.array([np.interp(grid, each.x, each.y) for each in curves])
    low, high = interval(values, np.mean)
    return MeanCurve(grid, values.mean(0), low, high)


def find_overlapping(curves: Sequence[Curve]) -> list[bool]:
    """Which curves to keep, so that all of them have a part in common: those that go with most others."""
    ends = np.array([(each.x[0], each.x[-1]) for each in curves])
    apart = (ends[:, :1] > ends[:, 1]) | (ends[:, :1] > ends[:, 1]).T  #: [n, n], whether two have no part in common
    kept = np.ones(len(curves), np.bool_)
    while (clashes := (apart & kept).sum(1) * kept).any():
        kept[max(range(len(curves)), key=lambda n: (clashes[n], -ends[n, 1]))] = False
    return kept.tolist()
