"""What was measured: the line of a runner, the row of a peer, and the table of all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zerobeast.tools.bench.peers.catalogue import OURS
from zerobeast.tools.bench.peers.process import PeerFailed

GOAL = 2.5  #: times the rate of every peer
HEAD = ("peer", "version", "settings", "agent steps/s", "ours/theirs", f"goal {GOAL:g}")
LEFT = 3  #: columns of words; the others are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a runner printed."""

    agent_steps: int  #: after frame skip
    seconds: float
    version: str

    @property
    def rate(self) -> float:
        """Agent steps a second."""
        return self.agent_steps / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    version: str
    settings: str
    rate: float | None = None  #: agent steps a second; None where it failed
    failure: str = ""  #: why


def parse_line(output: str) -> Measured:
    """Find the measurement in what a runner wrote; packages write much else, before and after.

    Raises:
      PeerFailed: there is none.
    """
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
            measured = Measured(
                agent_steps=int(found["agent_steps"]), seconds=float(found["seconds"]), version=str(found["version"])
            )
        except (ValueError, TypeError, KeyError):
            continue
        if measured.agent_steps > 0 and measured.seconds > 0:
            return measured
    raise PeerFailed("it ended without a measurement")


def ratio(row: Row, ours: float | None) -> float | None:
    """Our rate over theirs, where both are known."""
    return ours / row.rate if ours is not None and row.rate and row.name != OURS else None


def our_rate(rows: Iterable[Row]) -> float | None:
    """The rate in our own row, where there is one."""
    return next((row.rate for row in rows if row.name == OURS), None)


def describe(rows: Sequence[Row]) -> str:
    """The table; under it, a sentence for every row without a rate."""
    ours = our_rate(rows)
    lines = [HEAD, *(_cells(row, ratio(row, ours)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = [_aligned(line, widths) for line in lines]
    text += [f"{row.name}: {row.failure}" for row in rows if row.failure]
    return "\n".join(text)


def as_json(rows: Sequence[Row], **conditions: Any) -> dict[str, Any]:
    """The table for programs."""
    ours = our_rate(rows)
    entries = [
        {
            "peer": row.name,
            "version": row.version,
            "settings": row.settings,
            "rate": row.rate,
            "ratio": ratio(row, ours),
            "failure": row.failure or None,
        }
        for row in rows
    ]
    return {**conditions, "goal": GOAL, "rows": entries}


def _cells(row: Row, factor: float | None) -> tuple[str, ...]:
    rate = "failed" if row.failure else f"{row.rate:.0f}"
    compared = ("", "") if factor is None else (f"{factor:.2f}", "met" if factor >= GOAL else "not met")
    return (row.name, row.version, row.settings, rate, *compared)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:LEFT], widths[:LEFT], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[LEFT:], widths[LEFT:], strict=True)]
    return "  ".join(words + numbers).rstrip()
