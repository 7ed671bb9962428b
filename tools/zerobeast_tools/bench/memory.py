"""Measure the memory of every process over a long run: resident memory over time, as figures and as a picture."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from zerobeast.common.process.roles import SERVICES
from zerobeast_tools.bench.figures import Goal, figure
from zerobeast_tools.bench.options import emit_figures, numeric_parser
from zerobeast_tools.throwaway_run import training

MIB = 1 << 20
PERIOD_S = 5.0
GROWTH = Goal("<=", 60)  #: MiB an hour: less than what the allocator's own noise makes of half an hour
SETTLING = 1 / 3  #: fraction of the run in which queues, pools and caches still fill

Series = dict[str, list[tuple[float, float]]]  #: role -> (minutes, MiB)


def main(argv: list[str]) -> int:
    """`beast bench memory`."""
    parser = numeric_parser("memory", __doc__, minutes=30.0)
    parser.add_argument("--out", type=Path, help="picture to write")
    options, flags = parser.parse_known_args(argv)
    series = watch_memory(flags, options.minutes)
    found = {role: growth(points) for role, points in series.items()}
    figures = [figure(f"{role}: memory at the end", each["at_end_mib"], "MiB") for role, each in found.items()]
    figures += [figure(f"{role}: growth", each["mib_per_hour"], "MiB/hour", GROWTH) for role, each in found.items()]
    emit_figures(figures, options.json, growth=found, series=series)
    if options.out:
        _draw(series, options.out)
    return 0


def watch_memory(flags: list[str], minutes: float) -> Series:
    """Train, and sample every service's resident memory now and then."""
    series: Series = {}
    with training(flags) as run:
        started = time.monotonic()
        while (passed := time.monotonic() - started) < 60 * minutes:
            for role in sorted(SERVICES):
                points = [(passed / 60, float(page["memory_bytes"]) / MIB) for page in run.pages(role)]
                series.setdefault(role, []).extend(points)
            time.sleep(min(PERIOD_S, 60 * minutes / 10))
    return series


def growth(points: list[tuple[float, float]]) -> dict[str, float]:
    """Final size and growth of a series, once it has settled.

    Returns:
      MiB at the end, and the slope of a straight line through the settled part, MiB per hour.
    """
    settled = points[int(len(points) * SETTLING) :]
    minutes, sizes = np.array(settled).T
    slope = float(np.polyfit(minutes, sizes, 1)[0]) if len(settled) > 1 else 0.0
    return {"at_end_mib": sizes[-1], "mib_per_hour": 60 * slope}


def _draw(series: Series, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    panel: Any = figure.subplots()
    for role, points in series.items():
        minutes, sizes = zip(*points, strict=True)
        panel.plot(minutes, sizes, label=role)
    panel.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    figure.savefig(out, dpi=110)
