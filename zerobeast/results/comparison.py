"""Groups of runs as rows of a table: how many, how good at the end, and when they were good enough."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerobeast.common.health.figures import format_duration
from zerobeast.results.atari import human_normalized
from zerobeast.results.curves import AXES, RETURNS, Curve, Where, curve
from zerobeast.results.groups import Group
from zerobeast.results.run_results import SavedRun
from zerobeast.results.statistics import interval, iqm

Row = dict[str, Any]
WORDS = ("environment", "runs")  #: columns to the left


def curve_until(run: SavedRun, of: str, where: Where, *, at: int | None = None) -> Curve:
    """The curve of a run over agent steps, as `curves.curve`, until `at` agent steps."""
    points = curve(run, "steps", of, where=where)
    past = len(points.x) if at is None else int(np.searchsorted(points.x, at, "right"))
    return Curve(points.x[:past], points.y[:past])


def group_row(group: Group, of: str, *, at: int | None = None, threshold: float | None = None) -> Row:
    """The row of a group: plain values, None where there is none.

    Args:
      group: of runs that all have `curve_until`.
      of, at: as for `curve_until`.
      threshold: that is looked for in these values; of training, in means of 100 episodes alone.

    Raises:
      ConfigError: there is no such column.
    """
    points = [curve_until(run, of, group.where, at=at) for run in group.runs]
    scores, steps = np.array([each.y[-1] for each in points]), [int(each.x[-1]) for each in points]
    found: Row = {"env": group.runs[0].env, "group": group.label, "n": len(points)}
    found |= {"actions": group.where["actions"]} if "actions" in group.where else {}
    found |= {"least_agent_steps": min(steps), "most_agent_steps": max(steps)}
    for name, statistic in (("mean", np.mean), ("iqm", iqm)):
        ends = interval(scores, statistic) if len(points) > 1 else (None, None)
        low, high = (None if end is None else float(end) for end in ends)
        found |= {name: float(statistic(scores)), f"{name}_low": low, f"{name}_high": high}
    if threshold is not None:
        steps_to, seconds_to = (
            [_first(curve(run, x, of, where=group.where, full=True), threshold) for run in group.runs]
            for x in (AXES["steps"], AXES["time"])  # when it was made, not when it was due
        )
        late = [at is not None and steps > at for steps in steps_to]
        steps_to, seconds_to = (np.where(late, np.inf, first).tolist() for first in (steps_to, seconds_to))
        found |= {
            "threshold": threshold,
            "reached": sum(each < np.inf for each in steps_to),
            "steps_to_threshold": _median(steps_to),
            "seconds_to_threshold": _median(seconds_to),
        }
    returns = of in RETURNS or of in RETURNS.values()
    if returns and (normalized := human_normalized(group.where.get("env", found["env"]), found["mean"])) is not None:
        found["human_normalized"] = normalized
    return found | {"runs": [run.name for run in group.runs], "scores": scores.tolist()}


def _first(points: Curve, threshold: float) -> float:
    """Where a curve first is at a threshold; infinite if it never is."""
    above = np.flatnonzero(points.y >= threshold)
    return float(points.x[above[0]]) if len(above) else np.inf


def _median(values: Sequence[float]) -> float | None:
    """The median, in which runs that never got there count as the slowest; None if it is one of these."""
    middle = float(np.median(values))
    return middle if middle < np.inf else None


def markdown(rows: Sequence[Row], meaning: str) -> str:
    """Rows of groups as a table in Markdown, with a column only for what some row has; `meaning` is of their values."""
    several = len({each["env"] for each in rows}) > 1
    lines = [_cells(each, meaning, with_env=several) for each in rows]
    columns = [
        [name, *(line.get(name, "").replace("|", "&#124;") for line in lines)]
        for name in dict.fromkeys(name for line in lines for name in line)
    ]
    for column in columns:
        width = max(3, *map(len, column))
        left = column[0] in WORDS
        column[:] = [cell.ljust(width) if left else cell.rjust(width) for cell in column]
        column.insert(1, "-" * width if left else "-" * (width - 1) + ":")
    return "".join(f"| {' | '.join(cells)} |\n" for cells in zip(*columns, strict=True))


def _cells(found: Row, meaning: str, *, with_env: bool) -> dict[str, str]:
    least, most = found["least_agent_steps"], found["most_agent_steps"]
    cells = {"environment": found["env"]} if with_env else {}
    cells |= {"runs": found["group"], "n": str(found["n"])}
    cells["agent steps"] = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    cells[f"{meaning}: mean (95 % interval)"] = _interval(found, "mean")
    if found["n"] > 3:  # of fewer it is the mean
        cells["IQM (95 % interval)"] = _interval(found, "iqm")
    if "threshold" in found:
        steps, seconds = found["steps_to_threshold"], found["seconds_to_threshold"]
        cells[f"{format_short(found['threshold'])} reached by"] = f"{found['reached']} of {found['n']}"
        cells["agent steps until then"] = "never" if steps is None else f"{steps:,.0f}"
        cells["time until then"] = "never" if steps is None else format_duration(seconds)
    if "human_normalized" in found:
        cells["human-normalised"] = f"{100 * found['human_normalized']:.0f} %"
    return cells


def _interval(found: Mapping[str, Any], name: str) -> str:
    low, high = found[f"{name}_low"], found[f"{name}_high"]
    return format_short(found[name]) + ("" if low is None else f" ({format_short(low)} to {format_short(high)})")


def format_short(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
