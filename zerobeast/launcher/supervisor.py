"""Starts the children of a run, waits for whatever ends it, and stops the rest. Every way to end is here:

the learner ends with 0          training is done: the others are stopped           exit 0
                                 (once the evaluator has nothing left to do; if it makes no progress: exit 1)
a signal (Ctrl-C, TERM, HUP)     all are stopped                                    exit 128 + number
another Ctrl-C a second later    all are killed at once                             exit 130
any child ends otherwise         it is named and explained, the others are stopped  exit 2 or 75 as the child's, else 1
                                 (unless it is started again: `local.restarts`)
the evaluator, or another that
no run needs, ends               a warning; the training goes on                    exit 1 when it is done

Children are asked to stop role by role, the learner last, so that it writes its checkpoint when nothing arrives any
more. What still runs after STOP_LIMIT_S is killed, and what no run needs LAST_S after the others: 10 s in all. A
learner that computes or writes gets up to SAVE_LIMIT_S more, since a checkpoint may take longer on a busy machine.
"""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.process.roles import EVALUATOR, RECORDS, STOPPING_ORDER
from zerobeast.common.process.signals import handle_signals
from zerobeast.launcher.child import KILL_LIMIT_S, TURN_S, Child, await_end

log = logging.getLogger(__name__)

SETTLE_S = 0.5  #: after a death: one cause often ends several children, and not the most informative one first
STOP_LIMIT_S = 9.0
SAVE_LIMIT_S, QUIET_S = 60.0, 2.0  #: after STOP_LIMIT_S for a learner; without work after which it is not awaited
LAST_S = 2.0  #: how long those that no run needs may run after all others, since nothing is lost with what they do
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: exit codes that are passed on; bad input comes first, being a cause, and a lost peer after crashes, as a consequence
EXIT_CODE_RANKS = {ConfigError.exit_code: 0, PeerLost.exit_code: 2}


@dataclass(frozen=True)
class Ending:
    """How it ended: the exit code of the launcher and, if something went wrong, a sentence."""

    code: int
    sentence: str = ""
    finished: bool = False  #: training reached its last step


class Supervisor:
    """Runs the children of one run.

    Args:
      children: in the order of starting, the learner first.
      watch: called every turn while the children live, with whether they are being stopped; must not block.
      queue: policies of the run that wait for an evaluation.
      restarts: how often children that have died are started again, of those whose spec allows it.
    """

    def __init__(
        self,
        children: Sequence[Child],
        watch: Callable[[bool], None] = lambda _stopping: None,
        queue: EvaluationQueue | None = None,
        restarts: int = 0,
    ) -> None:
        self.children, self.learner = children, children[0]
        self._needed = [child for child in children if not RECORDS[child.spec.role].wanted]
        self._others = [child for child in children if child not in self._needed]
        self._evaluators = [child for child in self._others if child.spec.role == EVALUATOR]
        self._watch, self._queue = watch, queue
        self._restarts, self._restarted = restarts, 0
        self._signals: list[int] = []

    def ask(self, number: int) -> None:
        """Act as if this signal had come."""
        self._signals.append(number)

    def run(self, signals: Sequence[signal.Signals] = SIGNALS) -> Ending:
        """Start everything, wait for the end, stop everything. Leaves no process behind, whatever happens.

        Only the main thread can handle `signals`; another one has `ask`.
        """
        with handle_signals(signals, lambda number, _frame: self.ask(number)):
            try:
                ending = self._start_and_wait()
            finally:
                self._stop(self.children)
        return self._truth(ending)

    def _start_and_wait(self) -> Ending:
        try:
            for child in self.children:
                child.start()
        except BeastError as error:
            return Ending(error.exit_code, str(error))
        warned = set[str]()
        while True:
            if self._signals:
                return Ending(128 + self._signals[0])
            if self.learner.poll() == 0:
                return self._finish()
            if self._dead() and not self._start_again(ending := self._after_a_death()):
                return ending
            for reason in [reason for reason in self._explain_ended() if reason not in warned]:
                log.warning("training goes on: %s", reason)
                warned.add(reason)
            self._turn(stopping=False)

    def _explain_ended(self) -> list[str]:
        """Why each of those has ended without which a run goes on, such as the evaluator."""
        ended = [child for child in self._others if not child.running]
        return [f"the {child.spec.role} has ended: {child.explain()}" for child in ended]

    def _finish(self) -> Ending:
        """Stop all that train, then wait for the last evaluations; a signal ends the wait, since the run is done."""
        if self._others and self._evaluating:
            self._stop(self._needed)
        while any(child.running for child in self._evaluators) and self._evaluating and not self._signals:
            self._turn(stopping=False)
        reason = "; ".join(self._explain_ended()) or (self._queue.trouble if self._queue else "")
        return Ending(int(bool(reason)), reason, finished=True)

    @property
    def _evaluating(self) -> bool:
        """Whether policies wait for an evaluator that gets on with them."""
        return self._queue is not None and self._queue.waits(time.monotonic())

    def _after_a_death(self) -> Ending:
        """Wait a moment for deaths of the same cause, then name the one that explains best."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self._signals:
            if any(child.poll() == ConfigError.exit_code for child in self._needed):
                break
            self._turn(stopping=False)
        if self.learner.poll() == 0:
            return self._finish()
        child = min(self._dead(), key=lambda child: EXIT_CODE_RANKS.get(child.poll() or 0, 1))
        code = child.poll()
        return Ending(code if code in EXIT_CODE_RANKS else 1, child.explain())

    def _start_again(self, ending: Ending) -> bool:
        """Start those that have died again, unless that would not help; ranks of a learner all at once."""
        again, role = self._dead(), self.learner.spec.role
        allowed = all(child.spec.restart.allows(child.poll() or 0) for child in again)
        if ending.finished or not allowed or self._restarted >= self._restarts or self._signals:
            return False
        learns = any(child.spec.role == role for child in again)
        self._restarted += 1
        if learns:
            again = [child for child in self._needed if child in again or child.spec.role == role]
        log.warning("%s; started again, %d of %d times", ending.sentence, self._restarted, self._restarts)
        for child in again:
            child.kill()
        await_end(again, KILL_LIMIT_S)
        for child in again:
            child.start()
        return True

    def _dead(self) -> list[Child]:
        """Those that have ended although they are needed; a rank that is done is not, while the first one saves."""
        ended = [child for child in self._needed if child.poll() is not None]
        return [child for child in ended if child.poll() or child.spec.role != self.learner.spec.role]

    def _stop(self, children: Sequence[Child]) -> None:
        deadline = time.monotonic() + STOP_LIMIT_S
        for role in STOPPING_ORDER:
            asked = [child for child in children if child.spec.role == role]
            for child in asked:
                child.terminate()
            self._await(asked, min(deadline, time.monotonic() + RECORDS[role].grace_s))
        self._await([child for child in children if child in self._needed], deadline)
        self._await(children, min(deadline, time.monotonic() + LAST_S))
        if self.learner in children:
            self._await_work()
        for child in children:
            child.kill()
        await_end(children, KILL_LIMIT_S)

    def _await_work(self) -> None:
        """Wait for the learner as long as it works, within its limit."""
        began = worked_at = time.monotonic()
        while (now := time.monotonic()) < min(began + SAVE_LIMIT_S, worked_at + QUIET_S):
            if not self.learner.running or self._impatient:
                return
            worked_at = now if self.learner.works else worked_at
            self._turn(stopping=True)

    def _await(self, children: Sequence[Child], deadline: float) -> None:
        while any(child.running for child in children) and time.monotonic() < deadline and not self._impatient:
            self._turn(stopping=True)

    @property
    def _impatient(self) -> bool:
        return self._signals.count(signal.SIGINT) >= 2

    def _truth(self, ending: Ending) -> Ending:
        """Correct the exit code if the learner did not end properly."""
        code = self.learner.poll()
        if ending.sentence or ending.finished or self._impatient or code in (None, 0, -signal.SIGTERM):
            return ending
        if self.learner.was_killed:
            return Ending(1, "the learner did not stop in time and was killed: its last checkpoint is older")
        return Ending(1, self.learner.explain())

    def _turn(self, *, stopping: bool) -> None:
        self._watch(stopping)
        time.sleep(TURN_S)
