"""episodes.csv of a run: a line for each episode that was trained on; `services/learner/recorder.py` writes it.

When the file is large it becomes episodes.1.csv, in place of an earlier one, so the first episodes of a long run may be
gone. The files may come from an untrusted source: lines that are no such episodes do not count.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerobeast.common.files import run_files
from zerobeast.common.files.table_tail import TableTail

Row = dict[str, Any]  #: agent_steps, env, return (None: not finite), length and, as info/NAME, numbers of its last info
FULL_SUFFIX = ".1.csv"  #: how the name of a file that is full ends


class Episodes:
    """The episodes of a run as they come, each once, from now on.

    Args:
      folder: of the run.
      agent_steps: of the run so far.
    """

    def __init__(self, folder: Path, agent_steps: float) -> None:
        self._path, self._steps = folder / run_files.EPISODES, agent_steps
        self._lines = TableTail(self._path)
        self._lines.new()

    def new(self) -> list[Row]:
        """Episodes that were written since the last call; if the learner drops some, those of later agent steps."""
        full, lines = self._lines.under(self._path.with_suffix(FULL_SUFFIX)), self._lines.new()
        rows = [*_rows([*full.new(), *lines] if self._lines.again else lines)]
        if self._lines.again and full.again:  # not because it was full: the learner dropped what it does not know
            rows = [row for row in rows if row["agent_steps"] > self._steps]
        self._steps = max([self._steps, *(row["agent_steps"] for row in rows)])
        return rows


def read_episodes(folder: Path) -> list[Row]:
    """All episodes that are still there, oldest first."""
    path = folder / run_files.EPISODES
    return [row for each in (path.with_suffix(FULL_SUFFIX), path) for row in _rows(TableTail(each).new())]


def _rows(lines: Iterable[bytes]) -> Iterator[Row]:
    for line in lines:
        with suppress(ValueError, AttributeError, RecursionError, csv.Error):
            (steps, env, value, length, infos), *_ = csv.reader([line.decode(errors="replace")])
            numbers = {f"info/{name}": number for name, number in json.loads(infos or "{}").items()}
            about = {"agent_steps": int(steps), "env": env, "return": float(value) if value else None}
            yield {**about, "length": int(length), **numbers}
