"""metrics.csv of a run: a row of numbers for each `learner.log_every_s`, with the columns of the learner's recorder.

A cell is empty if its value is not known. A last line that is still being written does not count, nor one with other
cells than the header. The file may come from an untrusted source: what is no such table has no rows.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.files.regular_files import MAX_TABLE_BYTES, open_regular, read_rest, read_small_text
from zerobeast.common.files.table_tail import MAX_ROW_BYTES, TableTail, split_complete_lines
from zerobeast.common.text import printable

Row = dict[str, float | None]  #: by column, None where a cell is empty


class Columns(Mapping[str, NDArray[np.float64]]):
    """The table by columns, which are converted when they are asked for: [rows] each, NaN where a cell is empty."""

    def __init__(self, header: bytes = b"", lines: Iterable[bytes] = ()) -> None:
        names = next(csv.reader(header.decode(errors="replace").splitlines()[:1]), [])
        self._places = {name: place for place, name in enumerate(names)}
        self._lines = [line for line in lines if line.count(b",") == len(names) - 1]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        place = self._places[name]
        return np.array([_number(line.split(b",", place + 1)[place]) for line in self._lines])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def rows(self) -> Iterator[Row]:
        """The table by rows."""
        for line in self._lines:
            numbers = [*map(_number, line.split(b","))]
            yield {name: n if math.isfinite(n := numbers[at]) else None for name, at in self._places.items()}


def read_metrics(folder: Path) -> Columns:
    """All rows; no columns if there is no such file.

    Raises:
      ConfigError: it cannot be read.
    """
    if not (path := folder / run_files.METRICS).exists():
        return Columns()
    with explain_os_errors(f"{path}: cannot be read"), open_regular(path) as file:
        return Columns(file.readline(MAX_ROW_BYTES), split_complete_lines(read_rest(file, MAX_TABLE_BYTES)))


def read_last_row(folder: Path) -> dict[str, float]:
    """What is known by the last row, which is read from the end of the file; empty if there is none."""
    row: Row = {}
    with suppress(OSError), open_regular(folder / run_files.METRICS) as file:
        header = file.readline(MAX_ROW_BYTES)
        file.seek(max(len(header), os.fstat(file.fileno()).st_size - MAX_ROW_BYTES))
        row = next(Columns(header, reversed(split_complete_lines(file.read(MAX_ROW_BYTES)))).rows(), {})
    return {name: value for name, value in row.items() if value is not None}


def is_over(folder: Path, total_steps: int) -> bool:
    """Whether a run has taken its last step, or has reached `stop_at_return`."""
    return read_last_row(folder).get("agent_steps", 0) >= total_steps or (folder / run_files.REACHED_FILE).exists()


def describe_lost_episodes(folder: Path) -> str:
    """A sentence on the episodes that environments have failed in; empty if there are none."""
    row, reason = read_last_row(folder), ""
    if not (count := row.get("episodes_lost", 0)):
        return ""
    with suppress(OSError, UnicodeError):
        reason = f" to {printable(read_small_text(folder / run_files.LOST_FILE))}"
    return f"{count:,.0f} of {count + row.get('episodes', 0):,.0f} episodes were lost{reason}"


class Rows:
    """The rows of a run as they come, each once; all of them again if the file was replaced."""

    def __init__(self, folder: Path) -> None:
        self._lines = TableTail(folder / run_files.METRICS)

    def new(self) -> list[Row]:
        """Rows that were completed since the last call."""
        lines = self._lines.new()
        return list(Columns(self._lines.header, lines).rows())


def _number(cell: bytes) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
