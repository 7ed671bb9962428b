"""`beast sweep FILE`: many runs on this machine, each on its own cores, in one folder."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from zerobeast import commands
from zerobeast.cli import compare
from zerobeast.common.config import trust
from zerobeast.common.config.flags import read_flags, unknown
from zerobeast.common.config.table import settings_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.files.opening import named_text
from zerobeast.common.process.terminal import say, write
from zerobeast.common.settings import PLAIN
from zerobeast.results.run import read
from zerobeast.sweep import spec
from zerobeast.sweep.cores import Place, places
from zerobeast.sweep.journal import opened
from zerobeast.sweep.runner import Runner
from zerobeast.sweep.trials import Trial, trials_of

FILE = "sweep.yaml"
HELP = """beast sweep FILE [--parallel N] [--cores N] [--dry_run]

Trains every run that a file describes, so many at a time, each on its own cores, in <root>/<name>/. The same command
goes on after Ctrl-C, or after a crash: runs that are done are left alone, others continue from their checkpoints, and
those that failed are tried again. At the end it prints what `beast compare` prints of the runs that are done.

  FILE           YAML: see below
  --parallel N   runs at a time, by default as many as there are cores
  --cores N      cores of each, by default one, or with --parallel an equal share
  --dry_run      check the file and list its runs; start nothing

name, root, parallel, cores, samples and seed may stand in the file or be given as flags.

Two sweeps at a time need cores of their own: taskset -c 0-7 beast sweep FILE.
A value that imports a module has to be repeated as a flag, such as --env my_module:MyEnv.

exit codes: 0 all runs are done; 1 a run failed, others have gone on; 2 bad input, nothing was started; 130 and 143
after Ctrl-C and SIGTERM, with checkpoints

An example of a file:
"""
EXAMPLE = "\n".join((spec.__doc__ or "").splitlines()[2:])


def main(argv: list[str]) -> int:
    """Run `beast sweep`. Raises ConfigError if nothing was started."""
    file, rest = commands.about(argv, f"{HELP}\n{EXAMPLE}\n")
    mistakes: list[str] = []
    own = settings_of(spec.SweepSettings)
    line = read_flags(rest, own, mistakes)
    mistakes += unknown(line, own)
    mistakes += [
        f"{one.where}: settings of runs stand in the file; expected a flag of the command"
        for one in line.settings
        if trust.guard_at(one.path) is PLAIN
    ]
    sweep = spec.read(Path(file), line.own, mistakes)
    trials, free = trials_of(sweep, line.settings), places(sweep.own.parallel, sweep.own.cores)
    if sweep.own.dry_run:
        write("\n".join(f"{trial.name}  {' '.join(trial.flags)}" for trial in trials))
        return 0
    return _train(sweep, trials, free)


def _train(sweep: spec.Sweep, trials: Sequence[Trial], free: Sequence[Place]) -> int:
    with opened(sweep.folder) as journal:
        journal.refuse_changes(trials)
        journal.begun(len(trials))
        write_atomically(sweep.folder / FILE, named_text(sweep.file), durable=True)
        each = f"{len(free[0])} CPU{'s' * (len(free[0]) > 1)} each"
        say(f"{len(trials)} runs in {sweep.folder}, {min(len(free), len(trials))} at a time with {each}")
        for name in [each for each in journal.done if not run_files.is_run(sweep.folder / each)]:
            say(f"{name} was done, but its folder is gone: it is trained again")
            journal.done.remove(name)
        runner = Runner(sweep.folder, free, journal, lambda text: say(f"{time.strftime('%H:%M:%S')} {text}"))
        number = runner.run(trials)
    for name, sentence in runner.failed.items():
        say(f"beast sweep: {name}: {sentence}", sys.stderr)
    if number:
        return 128 + number
    folders = [sweep.folder / trial.name for trial in trials if trial.name in journal.done]
    if done := [str(folder) for folder in folders if _readable(folder)]:
        try:
            compare.main([*done, "--by-env"])
        except ConfigError as error:  # there is nothing to compare
            say(str(error), sys.stderr)
    return int(bool(runner.failed))


def _readable(folder: Path) -> bool:
    """Whether a run can be compared; if it cannot, a line reports that."""
    try:
        read(folder)
    except ConfigError as error:
        say(f"left out: {error}", sys.stderr)
        return False
    return True
