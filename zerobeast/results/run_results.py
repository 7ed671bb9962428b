"""A run as its folder shows it: settings, metrics, evaluations. The files may be incomplete, or untrusted.

Results of other programs can stand in such a folder too: config.yaml then has `env`, `algo` and `seed`, and metrics.csv
or evaluations.csv the columns that are wanted.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import FAST_LOADER, read_yaml
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, metrics, run_files
from zerobeast.common.text import printable


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
    def metrics(self) -> metrics.Columns:
        """Of metrics.csv; without any if there is none yet. Raises ConfigError if it cannot be read."""
        return metrics.read_metrics(self.folder)

    @cached_property
    def evaluations(self) -> list[evaluations.Row]:
        """Rows of evaluations.csv, oldest first. Raises ConfigError if it cannot be read."""
        return evaluations.read_evaluations(self.folder)


def load_run(folder: Path) -> SavedRun:
    """A run without its results.

    Raises:
      ConfigError: config.yaml cannot be read.
    """
    path = folder / run_files.CONFIG
    if not path.is_file():
        raise ConfigError(path=str(path), expected="a file with the settings of a run")
    tree = read_yaml(path, str(path), FAST_LOADER)
    settings = dict(_flat("", tree))
    if isinstance(tree.get("env"), str):  # short for env.id
        settings["env.id"] = settings.pop("env")
    if not {"env.id", "algo"} <= settings.keys():
        raise ConfigError(path=str(path), expected="the settings of a run, with env and algo")
    return SavedRun(folder, settings)


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Settings by their dotted paths, and those in mappings among them."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), part)
    else:
        yield path, value
