"""The outcomes of each sort of fault, as a table for people."""

import statistics
from collections.abc import Iterable, Sequence

from zerobeast_tools.chaos.inject import Event
from zerobeast_tools.chaos.network_faults import NetworkTrial

Row = dict[str, str]  #: head of the column -> entry


def service_rows(events: Iterable[Event]) -> list[Row]:
    """One row for every sort of fault that happened to services."""
    by_title: dict[str, list[Event]] = {}
    for event in events:
        by_title.setdefault(event.fault.title, []).append(event)
    return [
        {
            "fault": title,
            "times tried": str(len(same)),
            "start-up, median": f"{statistics.median(event.start_s for event in same):.1f} s",
            "recovery (median, worst)": _recovery([event.recovery_s for event in same if event.usual is not None]),
            "rollouts lost (mean, worst)": f"{sum(event.lost for event in same) / len(same):.0f}, "
            f"{max(event.lost for event in same)}",
            "verdict": _verdict([event.broken for event in same]),
        }
        for title, same in sorted(by_title.items())
    ]


def network_rows(trials: Iterable[NetworkTrial]) -> list[Row]:
    """One row for every fault of the network, whichever plane it happened to."""
    by_fault: dict[str, list[NetworkTrial]] = {}
    for trial in trials:
        by_fault.setdefault(trial.fault, []).append(trial)
    rows = []
    for fault, same in by_fault.items():
        lost, cut = sum(trial.lost for trial in same), sum(trial.cut for trial in same)
        rows.append(
            {
                "fault": fault,
                "times tried": str(len(same)),
                "recovery (median, worst)": _recovery([trial.recovery_s for trial in same]),
                "rollouts lost": f"{lost}; {cut} in progress" if cut else str(lost),
                "verdict": _verdict([trial.trouble for trial in same]),
            }
        )
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The table; empty without rows."""
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)] if rows else []
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _recovery(times: Iterable[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    return f"{statistics.median(known):.1f} s, {max(known):.1f} s" if known else "nothing to recover"


def _verdict(troubles: Iterable[str]) -> str:
    found = [trouble for trouble in troubles if trouble]
    return f"{len(found)} times: {'; '.join(dict.fromkeys(found))}" if found else "held"
