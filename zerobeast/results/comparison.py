"""Groups of runs as rows of a table: how many, how good at the end, and when they were good enough."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zerobeast.common.health.figures import duration
from zerobeast.results.atari import human_normalized
from zerobeast.results.curves import RETURNS, Curve, curve
from zerobeast.results.groups import Group
from zerobeast.results.run import SavedRun
from zerobeast.results.statistics import interval, iqm

Row = dict[str, Any]
WORDS = ("environment", "runs")  #: columns to the left


class Result(NamedTuple):
    """What one run came to."""

    score: float  #: its last value
    steps: float  #: where that is
    reached_steps: float  #: where it first was at the threshold; infinite: never, or without a threshold
    reached_s: float


def result(run: SavedRun, of: str, *, env: str = "", threshold: float | None = None, at: int | None = None) -> Result:
    """What a run came to, at its end or after `at` agent steps; not a number if it has no value until then.

    Args:
      run: with its results.
      of, env: as for `curves.curve`.
      threshold: to look for.
      at: agent steps.

    Raises:
      ConfigError: there is no such column.
    """
    points = curve(run, "steps", of, env=env)
    past = len(points.x) if at is None else int(np.searchsorted(points.x, at, "right"))
    score, steps = (points.y[past - 1], points.x[past - 1]) if past else (np.nan, np.nan)
    if threshold is None:
        return Result(float(score), float(steps), np.inf, np.inf)
    reached_s = _first(curve(run, "time", of, env=env), threshold)
    return Result(float(score), float(steps), _first(points, threshold), reached_s)


def _first(points: Curve, threshold: float) -> float:
    above = np.flatnonzero(points.y >= threshold)
    return float(points.x[above[0]]) if len(above) else np.inf


def row(env: str, group: Group, of: str, results: Sequence[Result], threshold: float | None) -> Row:
    """The row of a group: plain values, None where there is none.

    Args:
      env: of its runs.
      group: of runs.
      of: what the results are of, as for `result`.
      results: of each run.
      threshold: that was looked for.
    """
    scores = np.array([each.score for each in results])
    found: Row = {"env": env, "group": group.label, "n": len(results)}
    steps = [each.steps for each in results]
    found |= {"least_agent_steps": int(min(steps)), "most_agent_steps": int(max(steps))}
    for name, statistic in (("mean", np.mean), ("iqm", iqm)):
        ends = interval(scores, statistic) if len(results) > 1 else (None, None)
        low, high = (None if end is None else float(end) for end in ends)
        found |= {name: float(statistic(scores)), f"{name}_low": low, f"{name}_high": high}
    if threshold is not None:
        found |= {
            "threshold": threshold,
            "reached": sum(each.reached_steps < np.inf for each in results),
            "steps_to_threshold": _median([each.reached_steps for each in results]),
            "seconds_to_threshold": _median([each.reached_s for each in results]),
        }
    returns = of in RETURNS or of in RETURNS.values()
    if returns and (normalized := human_normalized(env, found["mean"])) is not None:
        found["human_normalized"] = normalized
    return found | {"runs": [run.name for run in group.runs], "scores": scores.tolist()}


def _median(values: Sequence[float]) -> float | None:
    """The median, in which runs that never got there count as the slowest; None if it is one of these."""
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return middle if middle < np.inf else None


def markdown(rows: Sequence[Row], meaning: str) -> str:
    """Rows of groups as a table in Markdown, with a column only for what some row has; `meaning` is of their values."""
    several = len({each["env"] for each in rows}) > 1
    lines = [_cells(each, meaning, with_env=several) for each in rows]
    header = list(dict.fromkeys(name for line in lines for name in line))
    ruler = ["---" if name in WORDS else "---:" for name in header]
    table = [header, ruler, *([line.get(name, "") for name in header] for line in lines)]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n" for cells in table)


def _cells(found: Row, meaning: str, *, with_env: bool) -> dict[str, str]:
    least, most = found["least_agent_steps"], found["most_agent_steps"]
    cells = {"environment": found["env"]} if with_env else {}
    cells |= {"runs": found["group"], "n": str(found["n"])}
    cells["agent steps"] = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    cells[f"{meaning}: mean (95 % interval)"] = _interval(found, "mean")
    cells["IQM (95 % interval)"] = _interval(found, "iqm")
    if "threshold" in found:
        steps, seconds = found["steps_to_threshold"], found["seconds_to_threshold"]
        cells[f"{found['threshold']:g} reached by"] = f"{found['reached']} of {found['n']}"
        cells["agent steps until then"] = "never" if steps is None else f"{steps:,.0f}"
        cells["time until then"] = "never" if steps is None else duration(seconds)
    if "human_normalized" in found:
        cells["human-normalised"] = f"{100 * found['human_normalized']:.0f} %"
    return cells


def _interval(found: Mapping[str, Any], name: str) -> str:
    low, high = found[f"{name}_low"], found[f"{name}_high"]
    return short(found[name]) + ("" if low is None else f" ({short(low)} to {short(high)})")


def short(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
