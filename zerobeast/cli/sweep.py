"""`beast sweep FILE`: many runs on this machine, each on its own cores, in one folder."""

import contextlib
import sys
import time
from pathlib import Path

from rich.live import Live
from rich.text import Text

from zerobeast.common.config import trust
from zerobeast.common.config.flags import read_flags
from zerobeast.common.config.table import settings_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.settings import setting
from zerobeast.launcher.screen import PipeConsole
from zerobeast.launcher.start import say
from zerobeast.sweep import spec
from zerobeast.sweep.cores import places
from zerobeast.sweep.journal import SweepJournal, opened
from zerobeast.sweep.runner import INTERRUPTED, Listed, Runner
from zerobeast.sweep.table import conclusion, progress
from zerobeast.sweep.trials import Trial, trials_of

FILE = "sweep.yaml"
LIVE_S, LINES_S = 1.0, 30.0  #: between two looks at the runs
HELP = """beast sweep FILE [--parallel N] [--cores N] [--dry_run] [--plain]

Trains every run that a file describes, so many at a time, each on its own cores, in <root>/<name>/. The same command
goes on after Ctrl-C, or after a crash: runs that are done are left alone, others continue from their checkpoints, and
those that failed are tried again.

  FILE           YAML: see below
  --parallel N   runs at a time, by default as many as there are cores
  --cores N      cores of each, by default one, or with --parallel an equal share
  --dry_run      check the file and list its runs; start nothing
  --plain        lines instead of a table of the runs that train

Values that import a module count only if a flag says the same, such as --env my_module:MyEnv.

exit codes: 0 all runs are done; 1 a run failed, others have gone on; 2 bad input, nothing was started; 130 and 143
after Ctrl-C and SIGTERM, with checkpoints

An example of a file:
"""
EXAMPLE = "\n".join((spec.__doc__ or "").splitlines()[2:])


class SweepFlags(spec.SweepSettings):
    """Flags of the command itself."""

    dry_run: bool = setting(default=False, meaning="check the file and list its runs")
    plain: bool = setting(default=False, meaning="lines instead of a table")


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    if any(flag in ("-h", "--help") for flag in argv):
        sys.stdout.write(f"{HELP}\n{EXAMPLE}\n")
        return 0
    if not argv or argv[0].startswith("-"):
        raise ConfigError("which file? beast sweep FILE; --help has an example")
    mistakes: list[str] = []
    line = read_flags(argv[1:], settings_of(SweepFlags), mistakes)
    mistakes += [
        f"{one.where}: settings of runs stand in the file; expected a flag of the command"
        for one in line.settings
        if one.path not in trust.GUARDED
    ]
    flags = SweepFlags.model_validate(spec.checked(line.own, SweepFlags, mistakes))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    sweep = spec.read(Path(argv[0]), [one for one in line.own if one.path in spec.SweepSettings.model_fields])
    trials, free = trials_of(sweep, line.settings), places(sweep.own.parallel, sweep.own.cores)
    if flags.dry_run:
        sys.stdout.writelines(f"{trial.name}  {' '.join(trial.flags)}\n" for trial in trials)
        return 0
    with opened(sweep.folder) as journal:
        journal.refuse_changes(trials)
        write_atomically(sweep.folder / FILE, sweep.file.read_text(encoding="utf-8"))
        each = f"{len(free[0])} CPU{'s' * (len(free[0]) > 1)} each"
        say(f"{len(trials)} runs in {sweep.folder}, {min(len(free), len(trials))} at a time with {each}")
        with contextlib.closing(_Screen(sweep.folder, trials, journal, plain=flags.plain)) as screen:
            screen.runner = runner = Runner(sweep.folder, free, journal, screen.update, screen.say)
            number = runner.run(Listed(trials))
        return _conclude(sweep.folder, trials, journal, number)


def _conclude(folder: Path, trials: list[Trial], journal: SweepJournal, number: int) -> int:
    with contextlib.suppress(OSError):
        PipeConsole(highlight=False).print(conclusion(folder, trials, journal.runs))
    endings = {trial.name: past.ending for trial in trials if (past := journal.runs.get(trial.name)) and past.ending}
    failed = {name: ending.sentence for name, ending in endings.items() if ending.code not in (0, *INTERRUPTED)}
    for name, sentence in failed.items():
        say(f"beast sweep: {name}: {sentence}", sys.stderr)
    return 128 + number if number else int(bool(failed))


class _Screen:
    """Shows how far the runs are: a few lines that are redrawn in place, or added now and then."""

    def __init__(self, folder: Path, trials: list[Trial], journal: SweepJournal, *, plain: bool) -> None:
        self.runner: Runner | None = None
        self._folder, self._trials, self._journal = folder, trials, journal
        self._console = PipeConsole(highlight=False)
        live = self._console.is_terminal and not self._console.is_dumb_terminal and not plain
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if live else None
        self._due = time.monotonic() + (0.0 if live else LINES_S)
        if self._live:
            self._live.start()

    def update(self) -> None:
        """Show them, if that is due."""
        now = time.monotonic()
        if self.runner is None or now < self._due:
            return
        self._due = now + (LIVE_S if self._live else LINES_S)
        text = progress(self._folder, self._trials, self._journal.runs, self.runner.current)
        if self._live:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            say(text)

    def say(self, text: str) -> None:
        """Add a line."""
        with contextlib.suppress(OSError, ValueError):
            self._console.out(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)

    def close(self) -> None:
        if self._live:
            with contextlib.suppress(OSError, ValueError):
                self._live.stop()
