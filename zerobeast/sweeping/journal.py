"""What has happened in a sweep: a line of JSON for every start and end of a run, which a killed sweep goes on from.

    {"at": "2026-01-31T23:59:58+00:00", "event": "begin", "runs": 4}
    {"at": ..., "event": "start", "run": "ppo-seed-1", "flags": [...], "cpus": [0]}
    {"at": ..., "event": "end", "run": "ppo-seed-1", "code": 0, "finished": true, "sentence": "", "seconds": 61.2}

A run that was started and has no end, or one that is not done, goes on from its checkpoint.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import Journal, explain_os_errors
from zerobeast.common.files.regular_files import MAX_TABLE_BYTES, read_rest
from zerobeast.common.files.regular_files import open_regular as opened_file
from zerobeast.common.files.run_files import lock
from zerobeast.launcher.supervisor import Ending
from zerobeast.sweeping.trials import Trial

JOURNAL = run_files.SWEEP


class SweepJournal:
    """The journal of one sweep; `open_journal` makes it.

    Args:
      path: of its file.
      text: what the file has so far.
      lines: takes what is added; None: nothing is.

    Raises:
      ConfigError: a line is none of a sweep's journal.
    """

    def __init__(self, path: Path, text: str, lines: Journal | None = None) -> None:
        self.done: set[str] = set()  #: runs of which nothing is left to do
        self.runs = 0  #: in all
        self._flags: dict[str, set[str]] = {}  #: with which each run was started
        self._path, self._lines = path, lines
        for number, line in enumerate(text.splitlines(), 1):
            what = f"{path}, line {number}: not an entry of a sweep's journal"
            with raise_as(ConfigError, what, ValueError, LookupError, TypeError, OverflowError):
                self._note(json.loads(line))

    def refuse_changes(self, trials: Sequence[Trial]) -> None:
        """Refuse trials that are not what was started under their names.

        Raises:
          ConfigError: a run was started with other settings, or its folder has a run that this sweep has not made.
        """
        for trial in trials:
            folder, past, flags = self._path.with_name(trial.name), self._flags.get(trial.name), {*trial.flags}
            if past is None and folder.exists():
                raise ConfigError(f"{folder} exists, but not as a run of this sweep: move it away, or use another name")
            if past is not None and past != flags:
                before = f"was started with {' '.join(sorted(past - flags)) or 'its defaults'}"
                now = f"the file now has {' '.join(sorted(flags - past)) or 'no value for that'}"
                advice = "use another name for a sweep with other settings"
                raise ConfigError(f"run {trial.name!r} {before}, and {now}: {advice}")

    def note_begin(self, runs: int) -> None:
        """Note how many runs there are in all. Raises ConfigError if that cannot be written."""
        self._write({"event": "begin", "runs": runs})

    def note_start(self, run: str, flags: tuple[str, ...], cpus: tuple[int, ...]) -> None:
        """Note that a run starts. Raises ConfigError if that cannot be written."""
        self._write({"event": "start", "run": run, "flags": flags, "cpus": cpus})

    def note_end(self, run: str, ending: Ending, seconds: float) -> None:
        """Note how a run ended, after so many seconds. Raises ConfigError if that cannot be written."""
        self._write({"event": "end", "run": run, **ending.__dict__, "seconds": round(seconds, 1)})

    def _write(self, entry: dict[str, Any]) -> None:
        assert self._lines is not None, "it is only read"
        line = json.dumps({"at": datetime.now().astimezone().isoformat(timespec="seconds"), **entry})
        with explain_os_errors(f"{self._path} cannot be written"):
            self._lines.write(f"{line}\n".encode(), sync=True)
        self._note(entry)

    def _note(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] == "begin":
            self.runs = int(entry["runs"])
        elif entry["event"] == "start":
            self._flags[entry["run"]] = set(entry["flags"])
        elif entry["event"] == "end" and entry["finished"] and entry["code"] == 0:  # an evaluator may fail at the end
            self.done.add(entry["run"])


def summarize_sweep(folder: Path) -> str:
    """How far a sweep is, in a sentence. Raises ConfigError if its journal cannot be read."""
    path = folder / JOURNAL
    with explain_os_errors(f"{path} cannot be read"), opened_file(path) as file:
        content = read_rest(file, MAX_TABLE_BYTES)
    journal = SweepJournal(path, b"\n".join(content.split(b"\n")[:-1]).decode(errors="replace"))
    state = "running" if run_files.is_held(path) else "ended" if len(journal.done) == journal.runs else "stopped"
    return f"{folder.name}/: sweep, {len(journal.done)} of {journal.runs} runs done, {state}"


@contextlib.contextmanager
def open_journal(folder: Path) -> Iterator[SweepJournal]:
    """Make the folder of a sweep if need be, and hold its journal, which one process at a time may write.

    Raises:
      ConfigError: the folder cannot be written or has something else in it, or the sweep runs already.
    """
    path = folder / JOURNAL
    with contextlib.ExitStack() as stack:
        with explain_os_errors(f"sweep folder {folder} cannot be written"):
            if folder.exists() and not path.exists() and any(folder.iterdir()):
                raise ConfigError(f"{folder} is not the folder of a sweep: expected a new or an empty folder")
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(opened_file(path, "a+b"))
            lock(file.fileno(), folder, refusal=f"sweep {folder.name!r} is already running here; expected another name")
            file.seek(0)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]  # without a line that a crash of the machine has torn
            file.truncate(len(whole))
            lines = stack.enter_context(contextlib.closing(Journal(path)))
        yield SweepJournal(path, whole.decode(errors="replace"), lines)
