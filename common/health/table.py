"""Services as a table of plain text, the times of their hops as another, and all of it as JSON."""

from collections.abc import Callable, Sequence, Set
from typing import Any

from zerobeast.common.health import figures, hops
from zerobeast.common.health.figures import UNKNOWN, ServiceView, duration, milliseconds, number, share, size
from zerobeast.common.health.verdict import Verdict, healthy
from zerobeast.common.text import printable

COLUMNS: dict[str, Callable[[ServiceView], str]] = {
    "service": lambda view: view.name,
    "state": figures.state,
    "uptime": lambda view: duration(number(view.page, "uptime_s")),
    "rate": figures.rate,
    "progress": lambda view: _ago(number(view.page, "progress_age_s")),
    "load": lambda view: figures.load(view) if view.page else UNKNOWN,
    "waits for": figures.waits_for,
    "policy": figures.policy,
    "peers": figures.peers,
    "memory": lambda view: size(number(view.page, "memory_bytes")),
    "CPU": lambda view: share(number(view.page, "cpu_share") if view.cpu_share is None else view.cpu_share),
    "trouble": lambda view: view.note or figures.trouble(view),
}
LEFT = {"service", "state", "load", "waits for", "policy", "trouble"}


def table(services: Sequence[ServiceView]) -> str:
    """A header and a line per service."""
    return aligned([list(COLUMNS), *([cell(view) for cell in COLUMNS.values()] for view in services)], LEFT)


def hop_table(services: Sequence[ServiceView]) -> str:
    """How long hops take: a header and a line per hop that something passed in the last few seconds; else empty."""
    pages = [view.page for view in services]
    rows = []
    for role, names in hops.HOPS.items():
        for name, meaning in names.items():
            passed = hops.recent(pages, name)
            if any(passed.buckets):
                times = [milliseconds(passed.quantile_s(part)) for part in (0.5, 0.9)]
                rows.append([f"{role} {name}", *times, meaning])
    for peer, seconds in hops.wires(pages).items():
        rows.append(
            [f"wire to {peer}", f"~{milliseconds(seconds)}", "", "mean round trip minus the time in the server"]
        )
    return aligned([["hop", "median", "90 %", "what"], *rows], {"hop", "what"}) if rows else ""


def as_json(services: Sequence[ServiceView], verdict: Verdict) -> dict[str, Any]:
    """The contents of the table, and every page in full."""
    return {
        "verdict": verdict.sentence,
        "healthy": bool(services) and verdict.good,
        "services": [
            {
                "name": view.name,
                "role": view.role,
                "state": figures.state(view),
                "healthy": healthy(view),
                "note": view.note,
                "page": view.page,
            }
            for view in services
        ],
    }


def aligned(rows: Sequence[Sequence[str]], left: Set[str]) -> str:
    """Lines with aligned columns; the first row names the columns."""
    clean = [[printable(cell) for cell in row] for row in rows]  # pages may hold text from any peer
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    lines = []
    for row in clean:
        cells = zip(rows[0], row, widths, strict=True)
        lines.append("  ".join(text.ljust(w) if name in left else text.rjust(w) for name, text, w in cells).rstrip())
    return "\n".join(lines)


def _ago(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else "now" if seconds < 2 else f"{duration(seconds)} ago"
