"""Learning curves of finished runs: mean return of the last 100 episodes over agent steps and over time.

Runs whose names differ in their seed alone have one colour. With --syncs, instead of the time: how many versions
of the weights each run's last mean return took, each counted once for each process that acted with it.
"""

import argparse
import csv
import re
import sys
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import ConfigError


def main(argv: list[str]) -> int:
    """`beast bench curve RUN_FOLDER... --out FILE.png`."""
    parser = argparse.ArgumentParser(prog="beast bench curve", description=__doc__, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or tables of the same columns")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    parser.add_argument("--title", default="")
    parser.add_argument("--goal", type=float, help="a line to draw")
    parser.add_argument("--syncs", action="store_true", help="versions that acted, instead of time")
    options = parser.parse_args(argv)
    tables = [run if run.suffix == ".csv" else run / "metrics.csv" for run in options.runs]
    curves = {_name(table): _read(table) for table in tables}
    _draw(curves, options)
    for name, rows in curves.items():
        sys.stdout.write(_summary(name, rows, options.goal) + "\n")
    return 0


class CurvePoint(NamedTuple):
    """One row of a run's table."""

    steps: int  #: agent steps
    seconds: float
    mean: float  #: return of the last 100 episodes
    syncs: int
    sync_bytes: int


def _name(table: Path) -> str:
    """Name of a run: that of its folder, or of a table that is not in a run folder."""
    return table.parent.name if table.name == "metrics.csv" else table.stem


def _read(path: Path) -> list[CurvePoint]:
    try:
        with path.open() as file:
            rows = [
                CurvePoint(
                    int(row["agent_steps"]),
                    float(row["elapsed_s"]),
                    float(row["mean_return_100"]),
                    *(int(row.get(name) or 0) for name in ("syncs", "sync_bytes")),
                )
                for row in csv.DictReader(file)
                if row["mean_return_100"]
            ]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path}: not the metrics of a run: {error!r}") from error
    if not rows:
        raise ConfigError(f"{path}: no episode has ended in this run yet")
    return rows


def _draw(curves: dict[str, list[CurvePoint]], options: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = panels = figure.subplots(1, 2, sharey=True)
    labels = list(dict.fromkeys(map(_but_for_seed, curves)))
    for name, rows in curves.items():
        means = [row.mean for row in rows]
        colour = f"C{labels.index(_but_for_seed(name))}"
        left.plot([row.steps / 1e6 for row in rows], means, colour)
        if options.syncs:
            right.semilogx(rows[-1].syncs, means[-1], "o", color=colour)
        else:
            right.plot([row.seconds / 60 for row in rows], means, colour)
    for number, label in enumerate(labels):
        left.plot([], [], f"C{number}", label=label)
    left.set_xlabel("agent steps, millions")
    right.set_xlabel("versions that acted" if options.syncs else "minutes")
    for panel in panels:
        panel.grid(alpha=0.3)
        if options.goal is not None:
            panel.axhline(options.goal, color="black", linestyle=":", linewidth=1)
    left.set_ylabel("mean return, last 100 episodes")
    left.legend(fontsize=8)
    figure.suptitle(options.title)
    figure.savefig(options.out, dpi=110)


def _but_for_seed(name: str) -> str:
    return re.sub(r"-?seed-?\d+", "", name)


def _summary(name: str, rows: list[CurvePoint], goal: float | None) -> str:
    last, best = rows[-1], max(row.mean for row in rows)
    text = f"{name}: best {best:.1f}, last {last.mean:.1f} at {last.steps} agent steps, {last.seconds:.0f} s"
    if last.syncs:
        text += f", {last.syncs} syncs of {last.sync_bytes / 1e6:.1f} MB"
    reached = next((row for row in rows if goal is not None and row.mean >= goal), None)
    return f"{text}; {goal:g} reached at {reached.steps} agent steps, {reached.seconds:.0f} s" if reached else text
