"""Trains the runs of a sweep, so many at a time, each on its own cores, and notes in the journal what became of it.

Each run is supervised by a thread of this process, as with `zerobeast.start`. That thread and the services have the
cores that this thread has while it starts the run. They end with checkpoints if this process does, even if killed.
"""

import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from zerobeast.api.run_thread import StartedRun
from zerobeast.common.config.request import Request
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.health.figures import format_count, format_hundredths
from zerobeast.common.process.signals import handle_signals
from zerobeast.launcher.supervisor import SIGNALS, Ending
from zerobeast.plan.processes import helper_environ
from zerobeast.plan.resolution import RunFlags, Say, resolve_run
from zerobeast.plan.run_folder import has_checkpoint
from zerobeast.sweeping.cores import Place, gpu_of
from zerobeast.sweeping.journal import SweepJournal
from zerobeast.sweeping.trials import Trial

log = logging.getLogger(__name__)

TURN_S = 0.2  #: how late an end or a signal is noticed
LINES_S = 30.0  #: between two lines about the runs that train
INTERRUPT_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)


class ActiveRun(NamedTuple):
    """A run that trains now."""

    run: StartedRun
    place: int  #: number of its cores
    since: float  #: monotonic seconds


class Runner:
    """Runs a sweep.

    Args:
      folder: of the sweep: the root of its runs.
      places: CPUs of each run at a time.
      journal: of the sweep.
      say: takes a line for every start and end, and now and then one about the runs that train.
    """

    def __init__(self, folder: Path, places: Sequence[Place], journal: SweepJournal, say: Say) -> None:
        self.failed: dict[str, str] = {}  #: why, by name
        self._folder, self._places, self._journal, self._say = folder, places, journal, say
        self._current: dict[str, ActiveRun] = {}  #: by name
        self._signals: list[int] = []
        self._line_at = time.monotonic() + LINES_S

    def run(self, trials: Sequence[Trial]) -> int:
        """Run those that are not done until all have ended, or a signal comes; returns that signal's number, or 0.

        The first signal ends all runs, with checkpoints. Another one, a second later, ends them at once.
        """
        waiting = deque(trial for trial in trials if trial.name not in self._journal.done)
        with handle_signals(SIGNALS, lambda number, _frame: self._ask(number)):
            try:
                while self._current or (waiting and not self._signals):
                    while waiting and not self._signals and len(self._current) < len(self._places):
                        self._start(waiting.popleft())
                    time.sleep(TURN_S)
                    self._take_ends()
                    self._show(len(waiting))
            finally:
                for current in self._current.values():  # if this process cannot go on
                    current.run.ask(signal.SIGTERM)
                for current in self._current.values():
                    current.run.stop()
        return self._signals[0] if self._signals else 0

    def _start(self, trial: Trial) -> None:
        taken = {current.place for current in self._current.values()}
        place = next(number for number in range(len(self._places)) if number not in taken)
        try:
            self._journal.note_start(trial.name, trial.flags, self._places[place])
        except ConfigError as error:  # a full disk; a run without an entry could not go on later
            self._fail(trial.name, str(error))
            return
        self._say(f"{trial.name} starts on CPU {','.join(map(str, self._places[place]))}")
        usable = os.sched_getaffinity(0)
        try:
            with contextlib.suppress(OSError):  # a core was taken away meanwhile
                os.sched_setaffinity(0, self._places[place])  # of this thread, and of what the run starts from here
            self._current[trial.name] = ActiveRun(self._start_run(trial, place), place, time.monotonic())
        except Exception as error:
            self._end(trial.name, _failure(error), 0.0)
        finally:
            os.sched_setaffinity(0, usable)
        if self._signals:  # one came meanwhile
            self._ask(self._signals.pop())

    def _start_run(self, trial: Trial, place: int) -> StartedRun:
        environ = helper_environ(os.environ) | gpu_of(place, os.environ)  # settings come from the file alone
        # a run that has a checkpoint goes on from that one
        parent = None if has_checkpoint(self._folder / trial.name) else trial.parent
        now = datetime.now().astimezone()
        values = {"name": trial.name, "root": self._folder, **trial.values}
        request = Request.of_values(values, environ, RunFlags)
        return StartedRun(resolve_run(request, now, say=log.info, parent=parent, here=False), environ)

    def _take_ends(self) -> None:
        """Note which runs have ended, and how."""
        for name, (run, _, since) in list(self._current.items()):
            try:
                ended, ending = run.wait(0), run.ending
            except Exception as error:
                ended, ending = True, run.ending or _failure(error)
            if ended and ending:
                del self._current[name]
                self._end(name, ending, time.monotonic() - since)

    def _end(self, name: str, ending: Ending, seconds: float) -> None:
        if not ending.code and self._signals and run_files.list_checkpoints(self._folder / name, run_files.TO_EVALUATE):
            ending = Ending(128 + self._signals[0], "")  # its last policies wait for the evaluator
        with contextlib.suppress(ConfigError):  # a full disk: without this entry, it goes on and ends again
            self._journal.note_end(name, ending, seconds)
        if ending.code in INTERRUPT_CODES:
            self._say(f"{name} was interrupted")
        elif ending.code:
            self._fail(name, ending.sentence)
        else:
            self._say(f"{name} is done")

    def _fail(self, name: str, sentence: str) -> None:
        self.failed[name] = sentence
        self._say(f"{name} failed: {sentence.partition(chr(10))[0]}")

    def _show(self, waiting: int) -> None:
        if self._current and (now := time.monotonic()) >= self._line_at:
            self._line_at = now + LINES_S
            lines = [f"{len(self._current)} runs train, {waiting} wait"]
            for name, current in self._current.items():
                row, steps = metrics.read_last_row(self._folder / name), format_count(current.run.config.total_steps)
                done, score = format_count(row.get("agent_steps", 0)), format_hundredths(row.get("mean_return_100"))
                over = metrics.is_over(self._folder / name, current.run.config.total_steps)
                far = "trained, its last policies are evaluated" if over else f"{done} of {steps} steps"
                lines.append(f"  {name}: {far}, return {score}")
            self._say("\n".join(lines))

    def _ask(self, number: int) -> None:
        self._signals.append(number)
        for current in self._current.values():
            current.run.ask(*((signal.SIGTERM,) if len(self._signals) == 1 else (signal.SIGINT, signal.SIGINT)))


def _failure(error: Exception) -> Ending:
    """The ending of a run that could not be started, or supervised."""
    if not isinstance(error, BeastError):
        log.error("a run failed", exc_info=error)
    return Ending(getattr(error, "exit_code", 1), str(error) or type(error).__name__)
