"""Services as a table of plain text, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from common.health import figures
from common.health.figures import UNKNOWN, duration, number, share, size
from common.health.verdict import healthy
from common.health.views import ServiceView

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
    "CPU": lambda view: share(number(view.page, "cpu_share")),
    "trouble": lambda view: view.note or figures.trouble(view),
}
LEFT = {"service", "state", "load", "waits for", "policy", "trouble"}


def table(services: Sequence[ServiceView]) -> str:
    """A header and a line per service."""
    rows = [list(COLUMNS), *([cell(view) for cell in COLUMNS.values()] for view in services)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join(_line(row, widths) for row in rows)


def as_json(services: Sequence[ServiceView], sentence: str) -> dict[str, Any]:
    """What the table says and more: every page as it is."""
    return {
        "verdict": sentence,
        "healthy": bool(services) and all(map(healthy, services)),
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


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        text.ljust(width) if name in LEFT else text.rjust(width)
        for name, text, width in zip(COLUMNS, row, widths, strict=True)
    )
    return "  ".join(cells).rstrip()


def _ago(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else "now" if seconds < 2 else f"{duration(seconds)} ago"
