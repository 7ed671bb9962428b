"""Groups of runs as rows of a table: how many, how good at the end, and when they were good enough."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zerobeast.results.atari import human_normalized
from zerobeast.results.curves import Curve, curve
from zerobeast.results.groups import Group
from zerobeast.results.run import SavedRun
from zerobeast.results.statistics import interval, iqm, mean, median

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


def row(env: str, group: Group, results: Sequence[Result], threshold: float | None) -> Row:
    """The row of a group: plain values, None where there is none.

    Args:
      env: of its runs.
      group: of runs.
      results: of each run.
      threshold: that was looked for.
    """
    scores = np.array([each.score for each in results])
    found: Row = {"env": env, "group": group.label, "n": len(results)}
    steps = [each.steps for each in results]
    found |= {"least_agent_steps": int(min(steps)), "most_agent_steps": int(max(steps))}
    for name, statistic in (("mean", mean), ("iqm", iqm)):
        ends = interval(scores, statistic) if len(results) > 1 else (None, None)
        low, high = (None if end is None else float(end) for end in ends)
        found |= {name: float(statistic(scores)), f"{name}_low": low, f"{name}_high": high}
    if threshold is not None:
        reached = [each for each in results if each.reached_steps < np.inf]
        found |= {
            "threshold": threshold,
            "reached": len(reached),
            "steps_to_threshold": _median([each.reached_steps for each in results]),
            "seconds_to_threshold": _median([each.reached_s for each in results]),
        }
    if (normalized := human_normalized(env, found["mean"])) is not None:
        found["human_normalized"] = normalized
    found |= {"runs": [run.name for run in group.runs], "scores": scores.tolist()}
    return found


def _median(values: Sequence[float]) -> float | None:
    """The median, in which runs that never got there count as the slowest; None if it is one of these."""
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return middle if middle < np.inf else None


def over_games(rows: Sequence[Row]) -> list[Row]:
    """For each label with several Atari games: the human-normalised scores of all its runs (Agarwal et al. 2021).

    Intervals are those of resampling the runs of each game by themselves.
    """
    games: dict[str, dict[str, np.ndarray[Any, np.dtype[np.float64]]]] = {}
    for each in rows:
        if "human_normalized" in each:
            scores = np.array([human_normalized(each["env"], score) for score in each["scores"]])
            games.setdefault(each["group"], {})[each["env"]] = scores
    found = []
    for label, by_game in games.items():
        if len(samples := list(by_game.values())) < 2:
            continue
        about: Row = {"env": f"{len(samples)} Atari games", "group": label}
        about["n"] = sum(map(len, samples))
        for name, statistic in (("median", median), ("mean", mean), ("iqm", iqm)):
            whole = all(len(sample) > 1 for sample in samples)
            low, high = map(float, interval(samples, statistic)) if whole else (None, None)
            about |= {name: float(statistic(*samples)), f"{name}_low": low, f"{name}_high": high}
        found.append(about)
    return found


def markdown(rows: Sequence[Row], meaning: str) -> str:
    """Rows as a table in Markdown, with a column only for what some row has; those over games have one of their own.

    Args:
      rows: of groups and over games.
      meaning: of their values.
    """
    over, own = ([each for each in rows if ("median" in each) == wanted] for wanted in (True, False))
    envs = {each["env"] for each in own}
    tables = [[_cells(each, meaning, with_env=len(envs) > 1) for each in own], [*map(_percent, over)]]
    return "\n".join(_table(lines) for lines in tables if lines)


def _table(lines: Sequence[Mapping[str, str]]) -> str:
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
        threshold, steps, seconds = (
            found[name] for name in ("threshold", "steps_to_threshold", "seconds_to_threshold")
        )
        cells[f"{threshold:g} reached by"] = f"{found['reached']} of {found['n']}"
        cells["agent steps until then"] = "never" if steps is None else f"{steps:,.0f}"
        cells["time until then"] = "never" if steps is None else "" if seconds is None else duration(seconds)
    if "human_normalized" in found:
        cells["human-normalised"] = f"{100 * found['human_normalized']:.0f} %"
    return cells


def _percent(over: Row) -> dict[str, str]:
    names = [f"{name}{end}" for name in ("median", "mean", "iqm") for end in ("", "_low", "_high")]
    hundredfold = {name: 100 * over[name] for name in names if over[name] is not None}
    statistics = {f"{name}, %": _interval(over | hundredfold, name.lower()) for name in ("median", "mean", "IQM")}
    return {"human-normalised": over["env"], "runs": over["group"], "n": str(over["n"]), **statistics}


def _interval(found: Mapping[str, Any], name: str) -> str:
    low, high = found[f"{name}_low"], found[f"{name}_high"]
    return short(found[name]) + ("" if low is None else f" ({short(low)} to {short(high)})")


def short(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
