"""Services as a table of plain text, the times of their hops as another, and all of it as JSON."""

from collections.abc import Callable, Sequence, Set
from typing import Any

from zerobeast.common.health import figures, hops
from zerobeast.common.health.figures import (
    UNKNOWN,
    ServiceView,
    format_duration,
    format_ms,
    format_share,
    format_size,
    number,
)
from zerobeast.common.health.verdict import Verdict, is_healthy
from zerobeast.common.text import printable

COLUMNS: dict[str, Callable[[ServiceView], str]] = {
    "service": lambda view: view.name,
    "state": figures.state_of,
    "uptime": lambda view: format_duration(number(view.page, "uptime_s")),
    "rate": figures.format_rate,
    "progress": lambda view: _ago(number(view.page, "progress_age_s")),
    "load": lambda view: figures.format_load(view) if view.page else UNKNOWN,
    "waits for": figures.format_wait,
    "policy": figures.format_policy,
    "peers": figures.format_peers,
    "memory": lambda view: format_size(number(view.page, "memory_bytes")),
    "CPU": lambda view: format_share(number(view.page, "cpu_share") if view.cpu_share is None else view.cpu_share),
    "trouble": lambda view: view.note or figures.format_trouble(view),
}
LEFT_COLUMNS = {"service", "state", "load", "waits for", "policy", "trouble"}


def format_table(services: Sequence[ServiceView]) -> str:
    """A header and a line per service."""
    return align_columns(
        [list(COLUMNS), *([cell(view) for cell in COLUMNS.values()] for view in services)], LEFT_COLUMNS
    )


def hop_table(services: Sequence[ServiceView]) -> str:
    """How long hops take: a header and a line per hop that something passed in the last few seconds; else empty."""
    pages = [view.page for view in services]
    rows = []
    for role, names in hops.HOPS.items():
        for name, meaning in names.items():
            passed = hops.merge_recent(pages, name)
            if any(passed.buckets):
                times = [format_ms(passed.quantile_s(part)) for part in (0.5, 0.9)]
                rows.append([f"{role} {name}", *times, meaning])
    for peer, seconds in hops.wires(pages).items():
        rows.append([f"wire to {peer}", f"~{format_ms(seconds)}", "", "mean round trip minus the time in the server"])
    return align_columns([["hop", "median", "90 %", "what"], *rows], {"hop", "what"}) if rows else ""


def as_json(services: Sequence[ServiceView], verdict: Verdict) -> dict[str, Any]:
    """The contents of the table, and every page in full."""
    return {
        "verdict": verdict.sentence,
        "healthy": bool(services) and verdict.good,
        "services": [
            {
                "name": view.name,
                "role": view.role,
                "state": figures.state_of(view),
                "healthy": is_healthy(view),
                "note": view.note,
                "page": view.page,
            }
            for view in services
        ],
    }


def align_columns(rows: Sequence[Sequence[str]], left: Set[str]) -> str:
    """Lines with aligned columns; the first row names the columns."""
    clean = [[printable(cell) for cell in row] for row in rows]  # pages may hold text from any peer
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    lines = []
    for row in clean:
        cells = zip(rows[0], row, widths, strict=True)
        lines.append("  ".join(text.ljust(w) if name in left else text.rjust(w) for name, text, w in cells).rstrip())
    return "\n".join(lines)


def _ago(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else "now" if seconds < 2 else f"{format_duration(seconds)} ago"
