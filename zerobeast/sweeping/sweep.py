"""A sweep from its file to its outcome, as the command and `zerobeast.sweep` begin it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zerobeast.api.run import Run
from zerobeast.common.config import trust
from zerobeast.common.config.request import Request
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.files.regular_files import read_text_or_pipe
from zerobeast.common.plugins import refuse_imported
from zerobeast.common.process.terminal import say
from zerobeast.common.settings import NO_GUARD
from zerobeast.sweeping import spec
from zerobeast.sweeping.cores import Place, allocate_cores
from zerobeast.sweeping.journal import open_journal
from zerobeast.sweeping.runner import Runner
from zerobeast.sweeping.trials import Trial, trials_of

FILE = "sweep.yaml"
DONE_FATE, INTERRUPTED_FATE = "done", "interrupted"


class Outcome(NamedTuple):
    """What became of a run of a sweep."""

    name: str
    run: Run | None  #: None if it has no folder
    outcome: str  #: done, or why not


def sweep(file: str | os.PathLike[str], **flags: Any) -> list[Outcome]:
    """Train all runs that a file describes, as `beast sweep` does; called again, it goes on.

    Args:
      file: YAML, which `beast sweep --help` explains.
      flags: those of `beast sweep`: `parallel=2`, `cores=1`, `root="runs"`, `name="lr"`, `samples=20`, `seed=1`.

    Returns:
      A `name`, `run` and `outcome` for each run, in the order of the file.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
      KeyboardInterrupt: Ctrl-C has ended the runs, with checkpoints.

    Examples:
      >>> from pathlib import Path
      >>> import zerobeast as zb
      >>> settings = "settings: {env: CartPole-v1, algo: ppo, total_steps: 1000}"
      >>> vary = "vary: {ppo.learning_rate: [0.001, 0.0001]}"
      >>> size = Path("lr.yaml").write_text("{" + settings + ", " + vary + "}")
      >>> outcomes = zb.sweep("lr.yaml")
      2 runs in runs/lr, ...
      >>> [each.outcome for each in outcomes]
      ['done', 'done']
    """
    refuse_imported("starts a sweep")
    if not isinstance(file, str | os.PathLike):
        raise ConfigError(argument="file", value=file, expected="the file of a sweep")
    read, trials, free = plan_sweep(Path(file), Request.of_values(flags, own=spec.SweepSettings))
    number, outcomes = train_sweep(read, trials, free)
    if number:
        raise KeyboardInterrupt
    folders = {name: read.folder / name for name in outcomes}
    runs = {name: Run(folder) for name, folder in folders.items() if run_files.is_run(folder)}
    return [Outcome(name, runs.get(name), outcome) for name, outcome in outcomes.items()]


def plan_sweep(file: Path, request: Request) -> tuple[spec.Sweep, list[Trial], list[Place]]:
    """Check a sweep; returns it with its runs and the CPUs of each at a time. Raises ConfigError for every mistake."""
    mistakes = [*request.mistakes, *request.unknown_flag_errors("")]
    mistakes += [
        ConfigError(
            f"{one.where}: settings of the runs belong in the file; expected a flag of the command",
            path=one.path,
            value=one.value,
            layer=one.where,
        )
        for one in request.settings
        if trust.guard_at(one.path) is NO_GUARD
    ]
    read = spec.read_sweep(file, request.own_given, mistakes)
    return read, trials_of(read, request.settings), allocate_cores(read.own.parallel, read.own.cores)


def train_sweep(read: spec.Sweep, trials: Sequence[Trial], free: Sequence[Place]) -> tuple[int, dict[str, str]]:
    """Train the runs of a sweep that are not done; returns the signal that has ended it, or 0, and what became of each.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    with open_journal(read.folder) as journal:
        journal.refuse_changes(trials)
        journal.note_begin(len(trials))
        write_atomically(read.folder / FILE, read_text_or_pipe(read.file), durable=True)
        each = f"{len(free[0])} CPU{'s' * (len(free[0]) > 1)} each"
        say(f"{len(trials)} runs in {read.folder}, {min(len(free), len(trials))} at a time with {each}")
        for name in [each for each in journal.done if not run_files.is_run(read.folder / each)]:
            say(f"{name} was finished, but its folder is gone: it is trained again")
            journal.done.remove(name)
        runner = Runner(read.folder, free, journal, lambda text: say(f"{time.strftime('%H:%M:%S')} {text}"))
        number = runner.run(trials)
    waits = dict.fromkeys((trial.name for trial in trials), INTERRUPTED_FATE)
    return number, waits | dict.fromkeys(waits.keys() & journal.done, DONE_FATE) | runner.failed
