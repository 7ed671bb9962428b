"""evaluations.csv of a run: a row for each evaluation of one of its policies, in one environment.

    agent_steps, env_frames, elapsed_s    of the run, when the policy was saved
    env, actions, seed                    where it was evaluated, and how
    episodes, bounded                     how many were played; how many of them reached `evaluate.max_steps`
    mean_return, stderr_return, iqm_return, min_return, max_return, mean_length
    info/NAME                             mean over the episodes whose last info has that number
    returns, lengths                      of each episode, separated by spaces

A name of an info may appear late: the file is written anew with each row.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically

csv.field_size_limit(1 << 30)  # a cell has the returns of all episodes
LISTS = {"returns": float, "lengths": int}
TEXTS = ("env", "actions")

Row = dict[str, Any]  #: text, a number (None where there is none), or a list of numbers


def read(folder: Path) -> list[Row]:
    """The evaluations of the run in a folder so far, oldest first."""
    try:
        text = (folder / run_files.EVALUATIONS).read_text(encoding="utf-8")
    except OSError:
        return []
    return [{name: _value(name, cell) for name, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]


def append(folder: Path, new: Sequence[Mapping[str, Any]]) -> None:
    """Add the evaluations of a policy, in place of earlier ones of the same step and environment.

    Raises:
      ConfigError: the file cannot be written; it is as it was.
    """
    replaced = {(row["agent_steps"], row["env"]) for row in new}
    before = [row for row in read(folder) if (row["agent_steps"], row["env"]) not in replaced]
    write(folder, [*before, *map(dict, new)])


def write(folder: Path, rows: Sequence[Row]) -> None:
    """Replace all evaluations. Raises ConfigError as `append`."""
    text, last = io.StringIO(), ("returns", "lengths")
    names = dict.fromkeys(name for row in rows for name in row if name not in last)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header := [*names, *last])
    table.writerows([_cell(row.get(name)) for name in header] for row in rows)
    write_atomically(folder / run_files.EVALUATIONS, text.getvalue())


def scores(rows: Sequence[Row]) -> dict[int, float]:
    """The mean return of each evaluated policy over its environments, by agent steps."""
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["agent_steps"], []).append(row["mean_return"])
    return {steps: sum(means) / len(means) for steps, means in found.items()}


def _value(name: str, cell: str) -> Any:
    if name in TEXTS:
        return cell
    if name in LISTS:
        return [LISTS[name](number) for number in cell.split()]
    return (float(cell) if set(cell) & set(".ena") else int(cell)) if cell else None


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_cell, value))
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
