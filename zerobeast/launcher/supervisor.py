"""Starts the children of a run, waits for whatever ends it, and stops the rest. Every way to end is here:

the learner ends with 0          training is done: the others are stopped           exit 0
a signal (Ctrl-C, TERM, HUP)     all are stopped                                    exit 128 + number
a second Ctrl-C                  all are killed at once                             exit 130
any child ends otherwise         it is named and explained, the others are stopped  exit 2 or 75 as the child's, else 1

Children are asked to stop stage by stage, in the order in which they are given: the learner last, so that it writes
its checkpoint when nothing arrives any more. What still runs after STOP_LIMIT_S is killed: 10 s in all.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from zerobeast.common.errors import BeastError, PeerLost
from zerobeast.common.runtime.signals import handled
from zerobeast.launcher.child import BAD_INPUT, Child, signal_name

log = logging.getLogger(__name__)

TURN_S = 0.05  #: how late a death or a signal is noticed
SETTLE_S = 0.5  #: after a death: one cause often ends several children, and not the clearest of them first
STOP_LIMIT_S = 9.0
KILL_LIMIT_S = 1.0  #: SIGKILL cannot be ignored, but a process that waits for a disk dies late
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (BAD_INPUT, PeerLost.exit_code)


@dataclass(frozen=True)
class Stage:
    """Children that are stopped together.

    Attributes:
      children: of one role.
      head_start_s: how long the next stage waits for them; those that are slower may go on stopping beside it.
    """

    children: Sequence[Child]
    head_start_s: float


@dataclass(frozen=True)
class Ending:
    """How it ended: the exit code of the launcher and, where something went wrong, a sentence."""

    code: int
    sentence: str = ""
    finished: bool = False  #: training reached its last step


class Supervisor:
    """Runs the children of one run.

    Args:
      stages: in the order of stopping; the last holds the learner alone.
      watch: called every turn while the children live, with whether they are being stopped; must not block.
    """

    def __init__(self, stages: Sequence[Stage], watch: Callable[[bool], None] = lambda _stopping: None) -> None:
        self.stages = stages
        self.children = [child for stage in stages for child in stage.children]
        self.learner = stages[-1].children[0]
        self._watch = watch
        self._signals: list[int] = []

    def run(self) -> Ending:
        """Start everything, wait for the end, stop everything. Leaves no process behind, whatever happens."""
        with self._listening():
            try:
                ending = self._start_and_wait()
            finally:
                self._stop()
        return self._truth(ending)

    def _start_and_wait(self) -> Ending:
        try:
            for child in reversed(self.children):
                child.start()
        except BeastError as error:
            return Ending(error.exit_code, str(error))
        while True:
            if self._signals:
                return Ending(128 + self._signals[0])
            if self.learner.poll() == 0:
                return Ending(0, finished=True)
            if any(child.poll() is not None for child in self.children):
                return self._after_a_death()
            self._turn(stopping=False)

    def _after_a_death(self) -> Ending:
        """Wait a moment for deaths of the same cause, then name the one that explains best."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self._signals and not any(map(_explains, self.children)):
            self._turn(stopping=False)
        if self.learner.poll() == 0:
            return Ending(0, finished=True)
        dead = [child for child in self.children if child.poll() is not None]
        child = min(dead, key=lambda child: _rank(child.poll()))
        code = child.poll()
        return Ending(code if code in PASSED_ON else 1, child.explain())

    def _stop(self) -> None:
        deadline = time.monotonic() + STOP_LIMIT_S
        for stage in self.stages:
            for child in stage.children:
                child.terminate()
            self._await(stage.children, min(deadline, time.monotonic() + stage.head_start_s))
        self._await(self.children, deadline)
        for child in self.children:
            child.kill()
        gone = time.monotonic() + KILL_LIMIT_S
        while any(child.running for child in self.children) and time.monotonic() < gone:
            time.sleep(TURN_S)

    def _await(self, children: Sequence[Child], deadline: float) -> None:
        while any(child.running for child in children) and time.monotonic() < deadline and not self._impatient:
            self._turn(stopping=True)

    @property
    def _impatient(self) -> bool:
        return self._signals.count(signal.SIGINT) >= 2

    def _truth(self, ending: Ending) -> Ending:
        """Correct the exit code where the learner could not do its last duty."""
        code = self.learner.poll()
        if ending.sentence or ending.finished or self._impatient or code in (None, 0, -signal.SIGTERM):
            return ending
        if self.learner.was_killed:
            why = f"the learner did not stop within {STOP_LIMIT_S:.0f} s and was killed: its last checkpoint is older"
            return Ending(1, why)
        return Ending(1, self.learner.explain())

    def _turn(self, *, stopping: bool) -> None:
        self._watch(stopping)
        time.sleep(TURN_S)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        def note(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        with handled(SIGNALS, note):
            yield
        if self._signals:
            log.debug("stopped by %s", signal_name(self._signals[0]))


def _explains(child: Child) -> bool:
    return child.poll() == BAD_INPUT


def _rank(code: int | None) -> int:
    """Bad input first: it is the cause. Then crashes; a lost peer comes last, being a consequence."""
    return {BAD_INPUT: 0, PeerLost.exit_code: 2}.get(code or 0, 1)
