"""Learning curves of finished runs: mean return of the last 100 episodes over agent steps and over time.

Runs whose names differ in their seed alone have one colour.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

from zerobeast.common.errors import ConfigError


def main(argv: list[str]) -> int:
    """`beast bench curve RUN_FOLDER... --out FILE.png`."""
    parser = argparse.ArgumentParser(prog="beast bench curve", description=__doc__, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    parser.add_argument("--title", default="")
    parser.add_argument("--goal", type=float, help="a line to draw")
    options = parser.parse_args(argv)
    curves = {run.name: _read(run / "metrics.csv") for run in options.runs}
    _draw(curves, options.out, options.title, options.goal)
    for name, rows in curves.items():
        sys.stdout.write(_summary(name, rows, options.goal) + "\n")
    return 0


Row = tuple[int, float, float]  #: agent steps, seconds, mean return


def _read(path: Path) -> list[Row]:
    try:
        with path.open() as file:
            rows = [
                (int(row["agent_steps"]), float(row["elapsed_s"]), float(row["mean_return_100"]))
                for row in csv.DictReader(file)
                if row["mean_return_100"]
            ]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path}: not the metrics of a run: {error!r}") from error
    if not rows:
        raise ConfigError(f"{path}: no episode has ended in this run yet")
    return rows


def _draw(curves: dict[str, list[Row]], out: Path, title: str, goal: float | None) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    labels = list(dict.fromkeys(map(_but_for_seed, curves)))
    for name, rows in curves.items():
        steps, seconds, means = zip(*rows, strict=True)
        colour = f"C{labels.index(_but_for_seed(name))}"
        panels[0].plot([n / 1e6 for n in steps], means, colour)
        panels[1].plot([s / 60 for s in seconds], means, colour)
    for number, label in enumerate(labels):
        panels[0].plot([], [], f"C{number}", label=label)
    for panel, label in zip(panels, ("agent steps, millions", "minutes"), strict=True):
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
        if goal is not None:
            panel.axhline(goal, color="black", linestyle=":", linewidth=1)
    panels[0].set_ylabel("mean return, last 100 episodes")
    panels[0].legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(out, dpi=110)


def _but_for_seed(name: str) -> str:
    return re.sub(r"-?seed-?\d+", "", name)


def _summary(name: str, rows: list[Row], goal: float | None) -> str:
    steps, seconds, mean = rows[-1]
    text = f"{name}: best {max(row[2] for row in rows):.1f}, last {mean:.1f} at {steps} agent steps, {seconds:.0f} s"
    reached = next((row for row in rows if goal is not None and row[2] >= goal), None)
    return f"{text}; {goal:g} reached at {reached[0]} agent steps, {reached[1]:.0f} s" if reached else text
