"""evaluations.csv of a run: a row for each evaluation of one of its policies, in one environment.

    agent_steps, env_frames, elapsed_s    of the run, when the policy was saved
    env, level, actions, seed             where it was evaluated, by which name in `evaluate.levels`, and how
    episodes, bounded, lost               how many were played; how many of them reached `evaluate.max_steps`; how many
                                          more the environment failed in, which were played again
    mean_return, stderr_return, iqm_return, min_return, max_return, mean_length
    info/NAME                             mean over the episodes whose last info has that number
    returns, lengths                      of each episode, separated by spaces

A name of an info may appear late: the file is written anew with each row.
"""

import contextlib
import csv
import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import explain_os_errors, write_atomically
from zerobeast.common.files.regular_files import MAX_TABLE_BYTES, open_regular, read_small_text
from zerobeast.common.text import split_ids

csv.field_size_limit(1 << 24)  # a cell has the returns of all episodes
LISTS = {"returns": float, "lengths": int}
LOCK, TRIES = ".lock", 500  #: beside the policies that wait; for 10 s
TEXTS = ("env", "level", "actions")
STEP_COLUMNS = ("agent_steps", "env_frames", "elapsed_s", "seed")  #: columns that are no results
SAMPLED_SUFFIX = "-sampled"  #: ends names of videos and curves that are not of greedy actions

BEST_IN_TRAINING = "Best in training: by the mean return of 100 episodes with sampled actions, not by an evaluation."

Row = dict[str, Any]  #: text, a number (None where there is none), or a list of numbers


def read_evaluations(folder: Path) -> list[Row]:
    """The evaluations of the run in a folder so far, oldest first.

    Raises:
      ConfigError: the file is no such table.
    """
    path = folder / run_files.EVALUATIONS
    if not path.exists():
        return []
    try:
        with explain_os_errors(f"{path}: cannot be read"):
            table = csv.DictReader(read_small_text(path, MAX_TABLE_BYTES).splitlines())
        return [_row(cells) for cells in table]
    except (ValueError, OverflowError, csv.Error) as error:
        line = "" if isinstance(error, UnicodeError) else f", line {table.line_num}"
        raise ConfigError(f"{path}{line}: not a table of evaluations: {error}", path=str(path)) from error


@contextlib.contextmanager
def table_lock(folder: Path) -> Iterator[None]:
    """Keep others from changing the table: the evaluator adds rows, and the learner of a run that goes back drops some.

    Raises:
      DiskError: another process does not finish.
      ConfigError: the folder cannot be written.
    """
    with explain_os_errors(f"{folder / run_files.EVALUATIONS} cannot be changed"), contextlib.ExitStack() as stack:
        if (queue := folder / run_files.TO_EVALUATE).is_dir():  # otherwise there is no evaluator
            file = stack.enter_context(open_regular(queue / LOCK, "ab"))
            run_files.lock(file.fileno(), folder, TRIES)
        yield


def append_evaluations(folder: Path, new: Sequence[Mapping[str, Any]]) -> None:
    """Add the evaluations of a policy, in place of earlier ones with the same `evaluation_key`.

    Raises:
      ConfigError: the file cannot be written; it is as it was.
    """
    replaced = set(map(evaluation_key, new))
    before = [row for row in read_evaluations(folder) if evaluation_key(row) not in replaced]
    write_evaluations(folder, [*before, *map(dict, new)])


def evaluation_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an evaluation is of: step, environment and kind of actions."""
    return tuple(map(row.get, ("agent_steps", "env", "actions")))


def write_evaluations(folder: Path, rows: Sequence[Row]) -> None:
    """Replace all evaluations. Raises ConfigError as `append_evaluations`."""
    text, last = io.StringIO(), ("returns", "lengths")
    names = dict.fromkeys(name for row in rows for name in row if name not in last)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header := [*names, *last])
    table.writerows([_cell(row.get(name)) for name in header] for row in rows)
    write_atomically(folder / run_files.EVALUATIONS, text.getvalue(), durable=True)


def filter_by_actions(rows: Sequence[Row], actions: str) -> list[Row]:
    """Those in which the policy took such actions: "greedy", "sampled", or "" if that is not known.

    Returns of both kinds are not compared: they are those of two policies.
    """
    return [row for row in rows if (row.get("actions") or "") == actions]


def mean_by_steps(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """The numbers of each evaluated policy, as means over its environments, by agent steps."""
    found: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        numbers = found.setdefault(row["agent_steps"], {})
        for name, value in row.items():
            if isinstance(value, int | float):
                numbers.setdefault(name, []).append(value)
    means = ((steps, numbers.items()) for steps, numbers in found.items())
    return {steps: {name: sum(values) / len(values) for name, values in items} for steps, items in means}


def curve_values(rows: Sequence[Row]) -> dict[str, float]:
    """The numbers in the evaluations of one policy, by name; names end in the environment if there are several."""
    several = len({row.get("env") for row in rows}) > 1
    return {
        f"eval/{name}{_ending(row.get('actions'))}" + (f"/{row.get('env')}" if several else ""): value
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float) and name not in STEP_COLUMNS
    }


def video_path(agent_steps: int, actions: str) -> Path:
    """Where in its folder a run has the video of a policy that takes such actions."""
    return Path(run_files.VIDEOS, f"{agent_steps}{_ending(actions)}.mp4")


def steps_of(path: Path) -> int:
    """The agent steps in the name of a checkpoint or a video; -1 if it has none."""
    steps = path.stem.removesuffix(SAMPLED_SUFFIX)
    return int(steps) if steps.isdecimal() else -1


def best_in_training(checkpoint: Path, agent_steps: int) -> str:
    """A sentence on the best policy of a run that no evaluation has chosen; empty for any other checkpoint."""
    if (folder := run_files.saver_of(checkpoint)) and run_files.is_best(checkpoint):
        with contextlib.suppress(ConfigError):
            if agent_steps not in mean_by_steps(read_evaluations(folder)):
                return BEST_IN_TRAINING
    return ""


def scores(rows: Sequence[Row], names: Collection[str], actions: str) -> dict[int, float]:
    """What counts of each evaluated policy, by agent steps: its mean return over these environments.

    It decides which policy is the best, and when a run ends at `stop_at_return`.

    Args:
      rows: of evaluations, in whichever environments.
      names: ids of environments or, as in `evaluate.levels`, names of levels; "" are environments without such a name.
      actions: as for `filter_by_actions`.
    """
    counted = [
        row for row in filter_by_actions(rows, actions) if row.get("env") in names or (row.get("level") or "") in names
    ]
    return {steps: numbers["mean_return"] for steps, numbers in mean_by_steps(counted).items()}


def first_level(levels: str) -> str:
    """The name in `evaluate.levels` that decides, for `scores`."""
    return next(filter(None, split_ids(levels)), "")


def _ending(actions: str | None) -> str:
    return SAMPLED_SUFFIX if actions == "sampled" else ""


def _row(cells: dict[str, str]) -> Row:
    if None in cells or None in cells.values():
        raise ValueError("expected as many cells as in the first line")
    row = {name: _value(name, cell) for name, cell in cells.items()}
    for name in ("agent_steps", "mean_return"):
        if not math.isfinite(math.nan if row.get(name) is None else row[name]):
            raise ValueError(f"{name} is {cells.get(name, 'missing')!r}, expected a number")
    return row


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
