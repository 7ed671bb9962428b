"""Results of races: what a run has reached, the files that keep it, limits, and the table."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.atomic import write_atomically
from zerobeast_tools.bench.peers.catalogue import OWN_NAME

LIMIT_FACTOR = 3.0  #: times our median, after which the others are stopped
HEADINGS = ("task", "package", "settings", "seconds to the threshold: median", "worst", "agent steps, median", "seeds")


class Result(NamedTuple):
    """How a run has ended. It fails with `failure` alone, which is not kept."""

    task: str  #: name, environment and threshold, as shown
    competitor: str
    seed: int
    settings: str
    version: str = ""
    ended: Literal["threshold", "limit", "script", "failure"] = "failure"
    seconds: float = 0.0  #: of wall time until the threshold, or until it was stopped or ended by itself
    agent_steps: int = 0  #: at that time
    score: float | None = None  #: of the last evaluation
    failure: str = ""
    machine: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    commit: str | None = None
    date: str = ""

    @property
    def cost(self) -> tuple[float, float]:
        """Seconds and agent steps to the threshold; infinite if it was not reached."""
        return (self.seconds, self.agent_steps) if self.ended == "threshold" else (math.inf, math.inf)


def result_path(root: Path, task: str, competitor: str, seed: int) -> Path:
    """The file of a run."""
    return root / task / f"{competitor}-{seed}.json"


def load_result(path: Path, machine: dict[str, Any], limit_s: float) -> Result | None:
    """The result that is kept in a file; None if there is none, or of a run that was stopped before `limit_s`.

    Raises:
      ConfigError: the file is of another machine, or is no result.
    """
    if not path.exists():
        return None
    try:
        found = Result(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            path=str(path), expected="a result of `beast bench race`, or another --root, or --fresh", cause=str(error)
        ) from error
    if found.machine != machine:
        raise ConfigError(
            path=str(path),
            value=found.machine,
            expected=f"a result of this machine, {machine}, or another --root, or --fresh",
            cause="times of two machines cannot be compared",
        )
    return None if found.ended == "limit" and found.seconds < limit_s else found


def save_result(path: Path, result: Result) -> None:
    """Keep a result. Raises ConfigError or DiskError if that is impossible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result._asdict(), indent=2) + "\n", durable=True)


def limit_of_others(ours: Sequence[Result], most_s: float) -> float:
    """Seconds that another package may take on a task, after all our seeds or none; `most_s` at most."""
    return min(most_s, LIMIT_FACTOR * median(each.cost[0] for each in ours)) if ours else most_s


def find_outcome(output: str) -> dict[str, Any] | None:
    """The outcome in what a runner wrote; packages write much else, before and after."""
    for line in reversed(output.splitlines()):
        if line.startswith('{"reached"'):
            found: dict[str, Any] = json.loads(line)
            return {name: found.get(name) for name in ("ended", "seconds", "agent_steps", "score", "version")}
    return None


def parse_outcome(output: str) -> dict[str, Any]:
    """The same. Raises BeastError if there is none."""
    if (found := find_outcome(output)) is None:
        raise BeastError("it ended without an outcome")
    return found


def table(results: Sequence[Result], notes: Sequence[str] = ()) -> str:
    """The results in Markdown: a row for each task and competitor, in the order of the results."""
    rows: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        rows.setdefault((each.task, each.competitor), []).append(each)
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(_cells(found) for found in rows.values())]
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", *notes])


def when(results: Sequence[Result]) -> str:
    """The commits of ours and the days of all these results."""
    commits = dict.fromkeys(str(each.commit) for each in results)
    return f"commit {', '.join(commits)}; {', '.join(sorted({each.date for each in results}))}"


def _cells(runs: Sequence[Result]) -> tuple[str, ...]:
    first = runs[0]
    name = f"**{first.competitor}**" if first.competitor == OWN_NAME else f"{first.competitor} {first.version}".strip()
    if failed := next((run for run in runs if run.ended == "failure"), None):
        return first.task, name, first.settings, f"failed: {_escape(failed.failure)}", "", "", ""
    seconds, steps = zip(*(run.cost for run in runs), strict=True)
    middle, worst = median(seconds), max(seconds)
    missed = sorted((run for run in runs if run.ended != "threshold"), key=lambda run: run.seconds)
    return (
        *(first.task, name, first.settings),
        f"{middle:,.0f}" if middle < math.inf else _describe_miss(missed[-1]),
        f"{worst:,.0f}" if worst < math.inf else _describe_miss(missed[-1]),
        f"{median(steps):,.0f}" if middle < math.inf else "",
        ", ".join(f"{run.seconds:,.0f}" if run.ended == "threshold" else "-" for run in runs),
    )


def _describe_miss(run: Result) -> str:
    return f"not within {run.seconds:,.0f} s" + (f", {run.agent_steps:,} steps" if run.ended == "script" else "")


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
