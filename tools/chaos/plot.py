"""A soak as a picture: the rate over time with a mark at every fault, and the memory of every service."""

from collections.abc import Sequence
from math import nan
from pathlib import Path

from zerobeast.tools.chaos.faults import FaultKind
from zerobeast.tools.chaos.inject import Event
from zerobeast.tools.chaos.watch import RunWatch

COLORS = {FaultKind.KILL: "tab:red", FaultKind.TERM: "tab:orange", FaultKind.STOP: "tab:blue"}
PERIOD_S = 2.0


def draw_soak(out: Path, watch: RunWatch, events: Sequence[Event], start: float) -> None:
    """Write the picture to this file. `start` is the moment that counts as 0."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    rate, memory = figure.subplots(2, 1, sharex=True)
    moments, rates = watch.progress.rates(PERIOD_S)
    rate.plot([(at - start) / 60 for at in moments], rates, color="black", linewidth=0.8)
    for kind, color in COLORS.items():
        same = [event for event in events if event.fault.kind is kind]
        spans = [((event.at - start) / 60, (event.ready_at - event.at) / 60) for event in same]
        rate.broken_barh(spans, (0, 1), transform=rate.get_xaxis_transform(), color=color, alpha=0.4, label=kind)
    rate.set(ylabel="rollouts learned from, per second", ylim=(0, None))
    for name, points in sorted(watch.memory.items()):
        before = [0.0, *(uptime_s for _, uptime_s, _ in points)]
        minutes = [(at - start) / 60 for at, _, _ in points]
        # a gap wherever a new process takes over
        sizes = [size if uptime_s >= last else nan for (_, uptime_s, size), last in zip(points, before, strict=False)]
        memory.plot(minutes, sizes, label=name, linewidth=0.8)
    memory.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    for panel in (rate, memory):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, ncols=2, loc="lower right")
    figure.savefig(out, dpi=110)
