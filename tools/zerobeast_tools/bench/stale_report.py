"""Results of `beast bench stale`: for each run, and for each algorithm over its seeds."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple, Self

Curve = list[tuple[int, float]]  #: agent steps, mean return of the last 100 episodes
Spread = dict[str, float | None]  #: median, min and max; None where it falls on a run without a value

_FORMAT = "{:<9}{:>7}{:>10}{:>10}{:>13}{:>11}{:>11}"
_HEADINGS = ("", "seed", "best", "last", "goal at", "collapsed", "steps/s")


class SeedRun(NamedTuple):
    """The result of one seed. Returns are None if fewer than 100 episodes ended."""

    algo: str
    seed: int
    best: float | None
    last: float | None
    reached: int | None  #: agent steps at which the goal was reached
    collapsed: bool  #: the last return is below half of the best, or the weights overflowed
    rate: float  #: agent steps a second
    curve: Curve
    weights: str  #: digest of those at the end

    @classmethod
    def of(cls, algo: str, seed: int, curve: Curve, *, goal: float, diverged: bool, rate: float, weights: str) -> Self:
        """Judge a curve. A fall below half of the best return counts only if the best is positive."""
        best = max((value for _, value in curve), default=None)
        last = curve[-1][1] if curve else None
        reached = next((steps for steps, value in curve if value >= goal), None)
        fallen = best is not None and last is not None and last < best / 2 and best > 0
        return cls(algo, seed, best, last, reached, diverged or fallen, rate, curve, weights)


def summarize_runs(runs: Sequence[SeedRun]) -> dict[str, dict[str, Any]]:
    """By algorithm: the spread of each figure over the seeds, and how many runs collapsed or reached the goal."""
    return {algo: _summary([run for run in runs if run.algo == algo]) for algo in dict.fromkeys(r.algo for r in runs)}


def _summary(runs: Sequence[SeedRun]) -> dict[str, Any]:
    return {
        "best": _spread([run.best for run in runs], unknown=-math.inf),
        "last": _spread([run.last for run in runs], unknown=-math.inf),
        "reached": _spread([run.reached for run in runs], unknown=math.inf),
        "rate": _spread([run.rate for run in runs], unknown=0.0),
        "runs": len(runs),
        "runs_reached": sum(run.reached is not None for run in runs),
        "runs_collapsed": sum(run.collapsed for run in runs),
    }


def _spread(values: Sequence[float | None], *, unknown: float) -> Spread:
    """Spread over all runs; a run without a value counts as the worst."""
    known = [unknown if value is None else value for value in values]
    found = {"median": median(known), "min": min(known), "max": max(known)}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def format_line(run: SeedRun) -> str:
    """A run as a line of the table."""
    collapsed = "yes" if run.collapsed else "-"
    return _line(run.algo, run.seed, (run.best, run.last, run.reached, run.rate), collapsed)


def format_report(runs: Sequence[SeedRun]) -> str:
    """All runs, then the medians and extremes of each algorithm."""
    lines = [_FORMAT.format(*_HEADINGS), *map(format_line, runs)]
    for algo, found in summarize_runs(runs).items():
        for name in ("median", "min", "max"):
            lines.append(_line(algo, name, [found[what][name] for what in ("best", "last", "reached", "rate")]))
        reached, collapsed, count = (found[what] for what in ("runs_reached", "runs_collapsed", "runs"))
        lines.append(f"{algo}: {reached} of {count} reached the goal, {collapsed} collapsed")
    return "\n".join(lines)


def _line(algo: str, which: str | int, figures: Sequence[float | None], collapsed: str = "") -> str:
    best, last, reached, rate = figures
    return _FORMAT.format(algo, which, _return(best), _return(last), _count(reached), collapsed, _count(rate))


def _return(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
