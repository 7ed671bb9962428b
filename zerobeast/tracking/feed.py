"""What is new in the folder of a run: rows of metrics.csv and evaluations.csv, and videos."""

import contextlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast.common.files import evaluations, metrics, requests, run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.files.regular_files import read_small_text
from zerobeast.common.files.state import seal


class Item(NamedTuple):
    """A point of several curves, by name, or a video."""

    agent_steps: int
    content: Mapping[str, float] | Path


@dataclass
class Position:
    """How far a tracker has come in the files of a run."""

    id: str = field(default_factory=lambda: secrets.token_hex(4))  #: of the run, for the tracker
    metrics: int = -1  #: agent steps of the last row
    logged: dict[str, float] = field(default_factory=dict)  #: values of callers in it, which may change
    evaluations: int = -1  #: agent steps of the last ones
    videos: list[str] = field(default_factory=list)  #: names

    @classmethod
    def load(cls, path: Path) -> "Position":
        """The position in a file, or that before the first row if this user has not saved one there.

        A folder may come from somebody else, who is not to choose which run of the tracker is written to.
        """
        with contextlib.suppress(OSError, ValueError, TypeError, RuntimeError):
            mark, text = json.loads(read_small_text(path))
            if hmac.compare_digest(mark, _mark(path, text)):
                return cls(**json.loads(text))
        return cls()


class Feed:
    """Reads what lies after a position.

    Args:
      folder: of the run.
      file: has the position; written at once, because it names the run, and after each item.
    """

    def __init__(self, folder: Path, file: Path) -> None:
        self._file, self.position = file, Position.load(file)
        self._folder, self._metrics = folder, metrics.Rows(folder)
        self._rows: list[metrics.Row] = []  #: read and not used yet
        self._save()

    def new(self) -> Iterator[Item]:
        """What is new. An item was used once the next one is asked for; else it comes again at the next call."""
        at = self.position
        self._rows += self._metrics.new()
        callers = requests.read_logged_columns(self._folder)
        while self._rows:
            numbers = {name: number for name, number in self._rows[0].items() if number is not None}
            steps = int(numbers.pop("agent_steps", -1))
            own = {name: numbers[name] for name in numbers.keys() & callers}
            late = {name: number for name, number in own.items() if at.logged.get(name) != number}
            if new := numbers if steps > at.metrics else late if steps == at.metrics else {}:
                yield Item(steps, {f"train/{name}": number for name, number in new.items()})
                at.metrics, at.logged = steps, own
                self._save()
            self._rows.pop(0)
        rows = evaluations.read_evaluations(self._folder)
        for steps in sorted({row["agent_steps"] for row in rows if row["agent_steps"] > at.evaluations}):
            yield Item(steps, evaluations.curve_values([row for row in rows if row["agent_steps"] == steps]))
            at.evaluations = steps
            self._save()
        for path in run_files.list_videos(self._folder):
            if path.name not in at.videos:
                yield Item(steps if (steps := evaluations.steps_of(path)) >= 0 else max(0, at.metrics), path)
                at.videos.append(path.name)
                self._save()

    def _save(self) -> None:
        # suppressed: a full disk, on which it is written with the next item, and a user without a home
        with contextlib.suppress(BeastError, OSError, RuntimeError):
            text = json.dumps(asdict(self.position))
            write_atomically(self._file, json.dumps([_mark(self._file, text), text]), durable=False)


def _mark(path: Path, text: str) -> str:
    """The seal of a position, for one tracker and run: elsewhere it does not count. Raises as `seal`."""
    return seal(json.dumps([path.parent.resolve().name, path.name, text]))
