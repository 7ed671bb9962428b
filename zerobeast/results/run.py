"""A run as its folder shows it: settings, metrics, evaluations. The files may be incomplete, or a stranger's.

Results of other programs can stand in such a folder too: config.yaml then has `env`, `algo` and `seed`, and metrics.csv
or evaluations.csv the columns that are wanted.
"""

import csv
import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.text import printable

MAX_SETTINGS = 10_000  #: of one config.yaml: YAML's references can stand for more than fits into memory
SET_ASIDE = re.compile(r"\.old-\d{8}-\d{6}")  #: in the names of runs that --fresh has replaced
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times faster

Columns = Mapping[str, NDArray[np.float64]]  #: by name, each [rows]; NaN where a cell is empty


class Table(Columns):
    """Columns of numbers, converted when they are asked for."""

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._places = {name: place for place, name in enumerate(header)}
        self._rows = rows

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        place = self._places[name]
        return np.array([number(row[place]) for row in self._rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run and, read when they are asked for, its results."""

    folder: Path
    settings: Mapping[str, Any]  #: by their dotted paths

    @property
    def name(self) -> str:
        return printable(os.fsencode(self.folder.name).decode(errors="replace"))

    @property
    def env(self) -> str:
        """Id of its environment, or several with commas."""
        return printable(str(self.settings.get("env.id", "")))

    @property
    def algo(self) -> str:
        return printable(str(self.settings.get("algo", "")))

    @cached_property
    def metrics(self) -> Columns:
        """Of metrics.csv; without any if there is none yet."""
        return _table(self.folder / run_files.METRICS)

    @cached_property
    def evaluations(self) -> list[evaluations.Row]:
        """Rows of evaluations.csv, oldest first."""
        try:
            rows = evaluations.read(self.folder)
            return [row for row in rows if row["mean_return"] is not None and math.isfinite(row["mean_return"])]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            path = self.folder / run_files.EVALUATIONS
            raise ConfigError(f"{path}: not a table of evaluations: {error}") from error


def read(folder: Path) -> SavedRun:
    """A run without its results.

    Raises:
      ConfigError: config.yaml cannot be read.
    """
    path = folder / run_files.CONFIG
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506 - a SafeLoader
        settings: dict[str, Any] = {}
        for name, value in _flat("", tree):
            settings[name] = value
            if len(settings) > MAX_SETTINGS:
                raise ConfigError(f"{path}: more than {MAX_SETTINGS:,} settings")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from error
    if isinstance(tree, dict) and isinstance(tree.get("env"), str):  # short for env.id
        settings["env.id"] = settings.pop("env")
    if not {"env.id", "algo"} <= settings.keys():
        raise ConfigError(f"{path}: expected the settings of a run, with env and algo")
    return SavedRun(folder, settings)


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Settings by their dotted paths; a list of numbers or words is one of them."""
    parts: Iterable[tuple[Any, Any]]
    if isinstance(value, dict) and value:
        parts = value.items()
    elif isinstance(value, list) and any(isinstance(part, list | dict) for part in value):
        parts = enumerate(value)
    else:
        yield path, value
        return
    for name, part in parts:
        yield from _flat(f"{path}.{name}" if path else str(name), part)


def _table(path: Path) -> Columns:
    """A table of numbers; a last line that is still being written is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    header, *rows = csv.reader(text[: text.rfind("\n") + 1].splitlines()) if "\n" in text else [[]]
    return Table(header, [row for row in rows if len(row) == len(header)])


def number(cell: str | bytes) -> float:
    """The number in a cell of a table; NaN if there is none."""
    try:
        return float(cell)
    except ValueError:
        return np.nan


def find(names: Sequence[str], root: Path) -> list[SavedRun]:
    """The runs of these names, each once.

    Args:
      names: of runs below `root`, of their folders, of folders of runs, or patterns of these (`CartPole-*`), which
        leave out what is no run, and runs that --fresh has set aside.
      root: folder of run folders.

    Raises:
      ConfigError: there is no such run, or one of them cannot be read.
    """
    found: dict[Path, None] = {}
    for name in names:
        try:
            places = [root.expanduser() / name, Path(name).expanduser()]
            folders = next(filter(None, map(_runs_at, places)), [])
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror or error}") from error
        if not folders:
            raise ConfigError(
                f"there is no run {name!r}: expected {places[0] / run_files.CONFIG}; --root names another"
            )
        found |= dict.fromkeys(folder.resolve() for folder in folders)
    return [read(folder) for folder in found]


def _runs_at(place: Path) -> list[Path]:
    """The runs that a path means: itself, those that it matches, or those inside."""
    if _is_run(place):
        return [place]
    matched = glob.glob(str(place)) if glob.has_magic(str(place)) else place.glob("*") if place.is_dir() else ()
    return sorted(path for path in map(Path, matched) if _is_run(path) and not SET_ASIDE.search(path.name))


def _is_run(path: Path) -> bool:
    return (path / run_files.CONFIG).is_file()
