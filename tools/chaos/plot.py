"""A soak as a picture: the rate over time with a mark at every fault, and the memory of every service."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path

from zerobeast.tools.chaos.faults import FaultKind
from zerobeast.tools.chaos.inject import Event
from zerobeast.tools.chaos.verdict import Points
from zerobeast.tools.chaos.watch import RunWatch

COLORS = {FaultKind.KILL: "tab:red", FaultKind.TERM: "tab:orange", FaultKind.STOP: "tab:blue"}
PERIOD_S = 2.0


def draw_soak(out: Path, watch: RunWatch, events: Sequence[Event], start: float) -> None:
    """Write the picture.

    Args:
      out: file to write.
      watch: what was seen.
      events: the faults.
      start: moment that counts as 0.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (rate, memory) = plt.subplots(2, 1, figsize=(11, 6), sharex=True, layout="constrained")
    moments, rates = watch.progress.rates(PERIOD_S)
    rate.plot([(at - start) / 60 for at in moments], rates, color="black", linewidth=0.8)
    labelled: set[FaultKind] = set()
    for event in events:
        kind = event.fault.kind
        label = None if kind in labelled else str(kind)
        labelled.add(kind)
        rate.axvspan((event.at - start) / 60, (event.ready_at - start) / 60, color=COLORS[kind], alpha=0.4, label=label)
    rate.set(ylabel="rollouts learned from, per second", ylim=(0, None))
    for name, points in sorted(watch.memory.items()):
        minutes, sizes = _with_gaps(points, start)
        memory.plot(minutes, sizes, label=name, linewidth=0.8)
    memory.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    for panel in (rate, memory):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, ncols=2, loc="lower right")
    figure.savefig(out, dpi=110)
    plt.close(figure)


def _with_gaps(points: Points, start: float) -> tuple[list[float], list[float]]:
    """Minutes and sizes of one service, with a gap wherever another process takes its place."""
    minutes, sizes, last_uptime_s = [], [], 0.0
    for at, uptime_s, size in points:
        minutes.append((at - start) / 60)
        sizes.append(size if uptime_s >= last_uptime_s else nan)
        last_uptime_s = uptime_s
    return minutes, sizes
