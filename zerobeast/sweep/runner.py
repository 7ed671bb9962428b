"""Trains the runs of a sweep, so many at a time, each on its own cores, and notes in the journal what became of it.

Each run is supervised by a thread of this process, as with `zerobeast.start`. The services that it starts have the
cores of that thread. They end in order if this process does, even if it is killed.
"""

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import metrics
from zerobeast.common.health.figures import count, two
from zerobeast.common.process.signals import handled
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.fleet import child_environ
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.run_folder import trained
from zerobeast.launcher.start import RunFlags, Say, begun, judged, settle
from zerobeast.launcher.supervisor import SIGNALS, Ending, Supervisor
from zerobeast.sweep.cores import Place, gpu_of
from zerobeast.sweep.journal import SweepJournal
from zerobeast.sweep.trials import Trial

log = logging.getLogger(__name__)

TURN_S = 0.2  #: how late an end or a signal is noticed
LINES_S = 30.0  #: between two lines about the runs that train
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)


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
        self._current: dict[str, _Run] = {}  #: by name
        self._ends: queue.SimpleQueue[tuple[str, Ending]] = queue.SimpleQueue()
        self._signals: list[int] = []
        self._line_at = time.monotonic() + LINES_S

    def run(self, trials: Sequence[Trial]) -> int:
        """Run those that are not done until all have ended, or a signal comes; returns that signal's number, or 0.

        The first signal ends all runs in order, with checkpoints. Another one, a second later, ends them at once.
        """
        waiting = deque(trial for trial in trials if not self._journal.is_done(trial.name))
        with handled(SIGNALS, lambda number, _frame: self._ask(number)):
            try:
                while self._current or (waiting and not self._signals):
                    while waiting and not self._signals and len(self._current) < len(self._places):
                        self._start(waiting.popleft())
                    self._take_ends()
                    self._show(len(waiting))
            finally:
                self._stop()
        return self._signals[0] if self._signals else 0

    def _start(self, trial: Trial) -> None:
        taken = {run.place for run in self._current.values()}
        place = next(number for number in range(len(self._places)) if number not in taken)
        cpus = self._places[place]
        try:
            self._journal.started(trial.name, trial.flags, cpus)
        except ConfigError as error:  # a full disk; a run without an entry could not go on later
            self._fail(trial.name, str(error))
            return
        self._current[trial.name] = run = _Run(trial, self._folder, place, cpus, self._ends)
        self._say(f"{trial.name} starts on CPU {','.join(map(str, cpus))}")
        run.start()

    def _take_ends(self) -> None:
        """Note which runs have ended, and how; waits for a turn if there is none."""
        with contextlib.suppress(queue.Empty):
            while True:
                name, ending = self._ends.get(timeout=TURN_S)
                run = self._current.pop(name)
                run.join()
                with contextlib.suppress(ConfigError):  # a full disk: without this entry, it goes on and ends again
                    self._journal.ended(name, ending, time.monotonic() - run.since)
                if ending.code in INTERRUPTED:
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
            figures = {name: metrics.last(self._folder / name) for name in self._current}
            each = [
                f"{name} {count(row.get('agent_steps', 0))} steps, return {two(row.get('mean_return_100'))}"
                for name, row in figures.items()
            ]
            self._say(f"{waiting} more runs wait; " + "; ".join(each))

    def _ask(self, number: int) -> None:
        self._signals.append(number)
        for run in list(self._current.values()):
            run.ask(signal.SIGTERM if len(self._signals) == 1 else signal.SIGINT)

    def _stop(self) -> None:
        """End what still runs, if this process cannot go on."""
        for run in self._current.values():
            run.ask(signal.SIGTERM)
        for run in self._current.values():
            run.join()


class _Run(threading.Thread):
    """One run of a sweep, from its flags to its end."""

    def __init__(
        self, trial: Trial, folder: Path, place: int, cpus: Place, ends: "queue.SimpleQueue[tuple[str, Ending]]"
    ) -> None:
        super().__init__(name=trial.name, daemon=True)
        self.place, self.since = place, time.monotonic()
        self._trial, self._folder, self._cpus, self._ends = trial, folder, cpus, ends
        self._asked: list[int] = []
        self._supervisor: Supervisor | None = None

    def run(self) -> None:
        try:
            ending = self._train()
        except BeastError as error:
            ending = Ending(error.exit_code, str(error))
        except Exception as error:
            log.exception("%s", self.name)
            ending = Ending(1, f"{type(error).__name__}: {error}")
        self._ends.put((self.name, ending))

    def ask(self, number: int) -> None:
        """Act as if this signal had come."""
        self._asked.append(number)
        if self._supervisor is not None:
            self._pass_on(self._supervisor)

    def _train(self) -> Ending:
        with contextlib.suppress(OSError):  # a core was taken away meanwhile
            os.sched_setaffinity(0, self._cpus)  # of this thread, and of all processes that it starts
        flags = [f"--name={self.name}", f"--root={self._folder}", *self._trial.flags]
        environ = child_environ(os.environ) | gpu_of(self.place, os.environ)  # settings come from the file alone
        # a run that has a checkpoint goes on from that one
        parent = None if trained(self._folder / self.name) else self._trial.parent
        now = datetime.now().astimezone()
        settled = settle(flags, environ, now, own=RunFlags, say=log.debug, parent=parent)
        if self._asked:
            return Ending(128 + signal.SIGTERM)
        with (
            begun(settled, environ, say=log.debug) as fleet,
            contextlib.closing(Curves(fleet.config.folder.absolute())) as curves,
            Gatherer(fleet.add_all(), curves.update),
        ):
            self._supervisor = Supervisor(fleet.children, evaluating=fleet.evaluating)
            self._pass_on(self._supervisor)
            return judged(self._supervisor.run(signals=()), fleet.config)

    def _pass_on(self, supervisor: Supervisor) -> None:
        for number in (signal.SIGINT, signal.SIGINT) if signal.SIGINT in self._asked else self._asked:
            supervisor.ask(number)
