"""What has happened in a sweep: a line of JSON for every start and end of a run, which a killed sweep goes on from.

    {"at": "2026-01-31T23:59:58+00:00", "event": "start", "run": "ppo-seed-1", "flags": [...], "cpus": [0]}
    {"at": ..., "event": "end", "run": "ppo-seed-1", "code": 0, "finished": true, "sentence": "", "seconds": 61.2}

A run that was started and has no end, or one that is not finished, goes on from its checkpoint.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast.common.files.atomic import Journal
from zerobeast.common.files.run_files import lock
from zerobeast.launcher.supervisor import Ending
from zerobeast.sweep.trials import Trial

JOURNAL = "sweep.jsonl"


class Past(NamedTuple):
    """What is known about a run."""

    flags: tuple[str, ...]  #: that it was started with
    ending: Ending | None = None  #: None while it runs, and if the sweep was killed then
    seconds: float = 0.0  #: of all its starts that have ended


class SweepJournal:
    """The journal of one sweep, which one process at a time may write."""

    def __init__(self, folder: Path) -> None:
        self.runs: dict[str, Past] = {}  #: by name, what the journal says
        self._path = folder / JOURNAL
        for entry in _entries(self._path):
            self._note(entry)
        self._file = Journal(self._path)

    def refuse_changes(self, trials: Sequence[Trial]) -> None:
        """Refuse trials that are not what was started under their names.

        Raises:
          ConfigError: a run was started with other settings, or its folder has a run that this sweep has not made.
        """
        for trial in trials:
            folder, past = self._path.with_name(trial.name), self.runs.get(trial.name)
            if past is None and folder.exists():
                raise ConfigError(f"{folder} exists, and the sweep has not made it: move it away, or use another name")
            if past and set(past.flags) != set(trial.flags):
                before, now = sorted({*past.flags} - {*trial.flags}), sorted({*trial.flags} - {*past.flags})
                raise ConfigError(
                    f"run {trial.name!r} was started with {' '.join(before) or 'its defaults'}, and the file now has "
                    f"{' '.join(now) or 'no value for that'}: use another name for a sweep with other settings"
                )

    def started(self, run: str, flags: tuple[str, ...], cpus: tuple[int, ...]) -> None:
        """Note that a run starts."""
        self._write({"event": "start", "run": run, "flags": flags, "cpus": cpus})

    def said(self, run: str, text: str) -> None:
        """Note what the launcher has to say about a run."""
        self._write({"event": "note", "run": run, "text": text})

    def ended(self, run: str, ending: Ending, seconds: float) -> None:
        """Note how a run ended, after so many seconds of this start."""
        self._write({"event": "end", "run": run, **ending.__dict__, "seconds": round(seconds, 1)})

    def close(self) -> None:
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps({"at": datetime.now().astimezone().isoformat(timespec="seconds"), **entry})
        try:
            self._file.write(f"{line}\n".encode())
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error
        self._note(entry)

    def _note(self, entry: Mapping[str, Any]) -> None:
        name = entry.get("run", "")
        if entry["event"] == "start":
            before = self.runs[name].seconds if name in self.runs else 0.0
            self.runs[name] = Past(tuple(entry["flags"]), seconds=before)
        elif entry["event"] == "end":
            past, ending = self.runs[name], Ending(entry["code"], entry["sentence"], finished=entry["finished"])
            self.runs[name] = past._replace(ending=ending, seconds=past.seconds + entry["seconds"])


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[SweepJournal]:
    """Make the folder of a sweep if need be, and hold its journal.

    Raises:
      ConfigError: the folder cannot be written or has something else in it, or the sweep runs already.
    """
    path = folder / JOURNAL
    try:
        if folder.exists() and not path.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not the folder of a sweep: expected none of that name, or an empty one")
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"sweep folder {folder} cannot be written: {error.strerror or error}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        try:
            lock(handle, folder)
        except BlockingIOError as error:
            raise ConfigError(f"sweep {folder.name!r} is already running here; expected another name") from error
        _drop_torn_line(handle)
        yield stack.enter_context(contextlib.closing(SweepJournal(folder)))


def _drop_torn_line(handle: int) -> None:
    """Cut off a last line that was not written whole, as when the machine went down."""
    content = os.pread(handle, os.fstat(handle).st_size, 0)
    os.truncate(handle, content.rfind(b"\n") + 1)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            if entry["event"] == "start":
                _ = entry["run"], tuple(entry["flags"])
            elif entry["event"] == "end":
                _ = entry["run"], Ending(entry["code"], entry["sentence"], entry["finished"]), float(entry["seconds"])
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: not an entry of a sweep's journal: {error!r}") from error
        yield entry
