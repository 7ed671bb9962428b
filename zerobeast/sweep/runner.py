"""Runs what a search asks for, so many at a time, each on its own cores, and notes in the journal what became of it.

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
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from zerobeast.api.parent import parent_in
from zerobeast.common.errors import BeastError
from zerobeast.common.process.signals import handled
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.fleet import child_environ
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.run_folder import trained
from zerobeast.launcher.start import RunFlags, begun, judged, settle
from zerobeast.launcher.supervisor import SIGNALS, Ending, Supervisor
from zerobeast.sweep.cores import Place, gpu_of
from zerobeast.sweep.journal import SweepJournal
from zerobeast.sweep.trials import Trial

log = logging.getLogger(__name__)

TURN_S = 0.2  #: how late an end or a signal is noticed
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)


class Search(Protocol):
    """What to run next: a list, or something that learns from the runs that have ended."""

    def next(self, ended: Sequence[str]) -> Trial | None:
        """The run that starts next, on cores that are free now.

        Args:
          ended: names of the runs that have ended, whose folders have the results.

        Returns:
          None: there is none before another one ends. The sweep ends when this is the answer and none runs.
        """


class Listed:
    """Runs one after the other, whatever comes out."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = iter(trials)

    def next(self, ended: Sequence[str]) -> Trial | None:
        """The next of the list."""
        del ended
        return next(self._trials, None)


class Current(NamedTuple):
    """A run that trains now."""

    trial: Trial
    place: int  #: number of its cores
    since: float  #: monotonic seconds


class Runner:
    """Runs a sweep.

    Args:
      folder: of the sweep: the root of its runs.
      places: CPUs of each run at a time.
      journal: of the sweep.
      watch: called every turn; must not block.
      say: takes a line for every start and end.
    """

    def __init__(
        self,
        folder: Path,
        places: Sequence[Place],
        journal: SweepJournal,
        watch: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.current: dict[str, Current] = {}  #: by name
        self._folder, self._places, self._journal = folder, places, journal
        self._watch, self._say = watch, say
        self._threads: dict[str, _Run] = {}
        self._news: queue.SimpleQueue[tuple[str, str | Ending]] = queue.SimpleQueue()
        self._signals: list[int] = []

    def run(self, search: Search) -> int:
        """Run until the search has nothing more, or a signal comes; returns that signal's number, or 0.

        The first signal ends all runs in order, with checkpoints. Another one, a second later, ends them at once.
        """
        with handled(SIGNALS, lambda number, _frame: self._ask(number)):
            try:
                while self._start_more(search) or self.current:
                    self._take_news()
                    self._watch()
            finally:
                self._stop()
        return self._signals[0] if self._signals else 0

    def _start_more(self, search: Search) -> bool:
        """Start runs on free cores; returns whether one was started."""
        started, ended = False, [name for name, past in self._journal.runs.items() if past.ending]
        while len(self.current) < len(self._places) and not self._signals:
            if (trial := search.next(ended)) is None:
                break
            past = self._journal.runs.get(trial.name)
            if not (past and past.ending and past.ending.finished):
                self._start(trial)
                started = True
        return started

    def _start(self, trial: Trial) -> None:
        taken = [one.place for one in self.current.values()]
        place = next(number for number in range(len(self._places)) if number not in taken)
        self._journal.started(trial.name, trial.flags, self._places[place])
        self.current[trial.name] = Current(trial, place, time.monotonic())
        run = _Run(trial, self._folder, self._places[place], gpu_of(place, os.environ), self._news)
        self._threads[trial.name] = run
        self._say(f"{trial.name} starts on CPU {','.join(map(str, self._places[place]))}")
        run.start()

    def _take_news(self) -> None:
        """Note what the runs say and how they end; waits for a turn if there is nothing."""
        with contextlib.suppress(queue.Empty):
            while True:
                name, news = self._news.get(timeout=TURN_S)
                if isinstance(news, str):
                    self._journal.said(name, news)
                else:
                    self._end(name, news)

    def _end(self, name: str, ending: Ending) -> None:
        self._threads.pop(name).join()
        seconds = time.monotonic() - self.current.pop(name).since
        self._journal.ended(name, ending, seconds)
        how = "is done" if ending.finished else "was interrupted" if ending.code in INTERRUPTED else "failed"
        self._say(f"{name} {how}" + (f": {ending.sentence.splitlines()[0]}" if ending.sentence else ""))

    def _ask(self, number: int) -> None:
        self._signals.append(number)
        for run in list(self._threads.values()):
            run.ask(signal.SIGTERM if len(self._signals) == 1 else signal.SIGINT)

    def _stop(self) -> None:
        """End what still runs, if this process cannot go on."""
        for run in self._threads.values():
            run.ask(signal.SIGTERM)
        for run in self._threads.values():
            run.join()


class _Run(threading.Thread):
    """One run of a sweep, from its flags to its end."""

    def __init__(
        self,
        trial: Trial,
        folder: Path,
        place: Place,
        more: Mapping[str, str],
        news: "queue.SimpleQueue[tuple[str, str | Ending]]",
    ) -> None:
        super().__init__(name=trial.name, daemon=True)
        self._flags = [f"--name={trial.name}", f"--root={folder}", *trial.flags]
        self._folder, self._place, self._news = folder, place, news
        self._environ = child_environ(os.environ) | dict(more)  # settings come from the file of the sweep alone
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
        self._news.put((self.name, ending))

    def ask(self, number: int) -> None:
        """Act as if this signal had come."""
        self._asked.append(number)
        if self._supervisor is not None:
            self._pass_on(self._supervisor)

    def _train(self) -> Ending:
        with contextlib.suppress(OSError):  # a core was taken away meanwhile
            os.sched_setaffinity(0, self._place)  # of this thread, and of all processes that it starts
        flags, parent = self._flags, parent_in([*self._flags, f"--root={self._folder.parent}"])
        if parent and trained(self._folder / self.name):  # from now on it is a run like any other
            flags, parent = [flag for flag in flags if not flag.startswith("--from=")], None
        now = datetime.now().astimezone()
        settled = settle(flags, self._environ, now, own=RunFlags, say=self._say, parent=parent)
        if self._asked:
            return Ending(128 + signal.SIGTERM)
        with (
            begun(settled, self._environ, say=self._say) as fleet,
            contextlib.closing(Curves(fleet.config.folder.absolute())) as curves,
            Gatherer(fleet.add_all(), curves.update),
        ):
            self._supervisor = Supervisor(fleet.children, evaluating=fleet.evaluating)
            self._pass_on(self._supervisor)
            return judged(self._supervisor.run(signals=()), fleet.config)

    def _pass_on(self, supervisor: Supervisor) -> None:
        for number in (signal.SIGINT, signal.SIGINT) if signal.SIGINT in self._asked else self._asked:
            supervisor.ask(number)

    def _say(self, text: str) -> None:
        self._news.put((self.name, text))
