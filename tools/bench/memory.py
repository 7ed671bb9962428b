"""Whether every process keeps its size over a long run: resident memory over time, as figures and as a picture."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from zerobeast.tools.bench.train import pages_in, training

MIB = 1 << 20
PERIOD_S = 5.0
SETTLING = 1 / 3  #: of the run: queues, pools and caches still fill

Series = dict[str, list[tuple[float, float]]]  #: role -> (minutes, MiB)


def main(argv: list[str]) -> int:
    """`beast bench memory`."""
    parser = argparse.ArgumentParser(prog="beast bench memory", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to train; default %(default)g")
    parser.add_argument("--out", type=Path, help="picture to write")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    options, flags = parser.parse_known_args(argv)
    series = watch(flags, options.minutes)
    found = {role: growth(points) for role, points in series.items()}
    sys.stdout.write(describe(found) + "\n")
    if options.json:
        options.json.write_text(json.dumps({"growth": found, "series": series}, indent=2) + "\n")
    if options.out:
        _draw(series, options.out)
    return 0


def watch(flags: list[str], minutes: float) -> Series:
    """Train, and look at every service's resident memory now and then."""
    series: Series = {}
    with training(flags) as services:
        started = time.monotonic()
        while (passed := time.monotonic() - started) < 60 * minutes:
            for page in pages_in(services):
                point = (passed / 60, float(page["memory_bytes"]) / MIB)
                series.setdefault(f"{page['role']}", []).append(point)
            time.sleep(min(PERIOD_S, 60 * minutes / 10))
    return series


def growth(points: list[tuple[float, float]]) -> dict[str, float]:
    """How a series ends and grows, once it has settled.

    Returns:
      MiB at the end, and the slope of a straight line through the settled part, MiB per hour.
    """
    settled = points[int(len(points) * SETTLING) :]
    minutes, sizes = np.array(settled).T
    slope = float(np.polyfit(minutes, sizes, 1)[0]) if len(settled) > 1 else 0.0
    return {"at_end_mib": sizes[-1], "mib_per_hour": 60 * slope}


def describe(found: dict[str, dict[str, float]]) -> str:
    """A line per service."""
    lines = ["service      MiB at the end   growth, MiB per hour"]
    for role, figures in found.items():
        lines.append(f"{role:<12} {figures['at_end_mib']:14.0f} {figures['mib_per_hour']:22.1f}")
    return "\n".join(lines)


def _draw(series: Any, out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for role, points in series.items():
        minutes, sizes = zip(*points, strict=True)
        panel.plot(minutes, sizes, label=role)
    panel.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    figure.savefig(out, dpi=110)
