"""What is new in the folder of a run: rows of metrics.csv and evaluations.csv, and videos."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.files import evaluations, metrics, run_files
from zerobeast.common.files.atomic import write_atomically

OF_STEPS = ("agent_steps", "env_frames", "elapsed_s", "seed")  #: columns of evaluations that are no results


class Curves(NamedTuple):
    """A point of several curves."""

    agent_steps: int
    values: Mapping[str, float]


class Video(NamedTuple):
    """A file in `videos/`."""

    agent_steps: int
    path: Path


@dataclass
class Position:
    """How far a tracker has come in the files of a run; kept in a file, so that it continues there."""

    id: str = field(default_factory=lambda: secrets.token_hex(4))  #: of the run, for the tracker
    metrics: int = -1  #: agent steps of the last row
    evaluations: int = 0  #: how many rows
    videos: list[str] = field(default_factory=list)  #: names

    @classmethod
    def load(cls, path: Path) -> "Position":
        """The position in a file, or that before the first row if it has none."""
        with suppress(OSError, ValueError, TypeError):
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
            if [type(value) for value in asdict(found).values()] == [str, int, int, list]:
                return found
        return cls()

    def save(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be written."""
        write_atomically(path, json.dumps(asdict(self)))


class Feed:
    """Reads what lies after a position.

    Args:
      folder: of the run.
      position: where to begin; it moves on with each item that was used.
    """

    def __init__(self, folder: Path, position: Position) -> None:
        self.position = position
        self._folder, self._metrics = folder, metrics.Rows(folder)
        self._rows: list[metrics.Row] = []  #: read and not used yet

    def new(self) -> Iterator[Curves | Video]:
        """What is new. An item was used once the next one is asked for; else it comes again at the next call."""
        self._rows += self._metrics.new()
        while self._rows:
            numbers = {name: number for name, number in self._rows[0].items() if number is not None}
            steps = int(numbers.pop("agent_steps", -1))
            if steps > self.position.metrics:
                yield Curves(steps, {f"train/{name}": number for name, number in numbers.items()})
                self.position.metrics = steps
            self._rows.pop(0)
        rows = evaluations.read(self._folder)
        many = len({row["env"] for row in rows}) > 1
        for row in rows[self.position.evaluations :]:
            yield Curves(row["agent_steps"], _results(row, f"/{row['env']}" if many else ""))
            self.position.evaluations += 1
        for path in run_files.videos(self._folder):
            if path.name not in self.position.videos:
                digits = re.search(r"\d+", path.stem)
                yield Video(int(digits[0]) if digits else max(0, self.position.metrics), path)
                self.position.videos.append(path.name)


def _results(row: evaluations.Row, of: str) -> dict[str, float]:
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name not in OF_STEPS}
    return {f"eval/{name}{of}": value for name, value in numbers.items()}
