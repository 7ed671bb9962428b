"""The loop of a process: its services take turns in one thread, and wait together."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack

from zerobeast.common.errors import DiskError
from zerobeast.common.process.threads import run_in_thread
from zerobeast.common.service.base import LINGER_S, Service
from zerobeast.common.transport import Context, Poller

log = logging.getLogger(__name__)

MAX_WAIT_S = 0.1  #: bound on how late a signal is noticed
ATTEND_S = 0.2  #: between two looks at whether a service computes for long
LOOK_S = 5.0  #: between two looks at whether the run is over
COUNT_PERIOD_S = 0.2  #: reading the process's CPU time takes longer than many turns


class Loop:
    """Runs services until one of them is done, or asked to stop.

    Args:
      services: in the order in which they start; they drain and close in the reverse.
      supervisor_pid: the loop ends when this is no longer the parent process; never if it is 0 or its own.
      over: whether the run is over; the loop ends once it has been for LINGER_S.
    """

    def __init__(
        self, services: Sequence[Service], *, supervisor_pid: int = 0, over: Callable[[], bool] = lambda: False
    ) -> None:
        self.services = services
        self._over, self._goes_on_at, self._look_at = over, time.monotonic(), 0.0
        self._supervisor_pid = supervisor_pid if supervisor_pid != os.getpid() else 0
        self._undone: list[Callable[[], None]] = []
        self._pollers: list[Poller] = []
        self._poller = Poller()
        self._turned_s = [0.0] * len(services)  #: duration of each service's turns since `_counted_at`
        self._counted_at, self._counted_cpu_s = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Run to the end."""
        with ExitStack() as stack:
            if len(self.services) > 1:
                context = stack.enter_context(Context())
                for service in self.services:
                    service.share(context, len(self.services))
            for service in self.services:
                stack.callback(service.close)
            self._run()

    def run_in_own_thread(self) -> None:
        """As `run`, but in a thread of its own, while this one attends to services that compute for long.

        This thread also hears signals at once: Python handles them in its main thread, between two bytecodes, and a
        backward pass can be one bytecode that takes a minute. It may return while the other thread still computes.
        """
        ended = run_in_thread(self.run, "loop")
        while not wait([ended], ATTEND_S).done:
            if any(service.computing.meanwhile(service.attend) for service in self.services):
                return
        ended.result()

    def _run(self) -> None:
        for service in self.services:
            service.start()
        while not any(service.stopping for service in self.services):
            self._wait()
            self._turn()
            if self._supervisor_pid and os.getppid() != self._supervisor_pid:
                log.warning("the supervisor is gone: stopping")
                self.stop()
            self._look(time.monotonic())
        for service in reversed(self.services):
            service.finish()

    def until_done(self, task: Callable[[], None]) -> None:
        """Call a task now, and every LOOK_S as long as it raises DiskError."""
        try:
            task()
        except DiskError as error:
            log.warning("%s; it is tried again", error)
            self._undone.append(task)

    def _look(self, now: float) -> None:
        """Try again what could not be done, and end if the run has been over for a while."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for _ in range(len(self._undone)):
            self.until_done(self._undone.pop(0))
        if not self._over():
            self._goes_on_at = now
        elif now - self._goes_on_at >= LINGER_S:
            log.info("the run has reached its last step: ending")
            self.stop()

    def stop(self) -> None:
        """Ask the loop to end. Safe in a signal handler: it sets flags and nothing more."""
        for service in self.services:
            service.stop()

    def _turn(self) -> None:
        began = time.monotonic()
        for place, service in enumerate(self.services):
            service.turn()
            ended = time.monotonic()
            self._turned_s[place] += ended - began
            began = ended
        if began - self._counted_at > COUNT_PERIOD_S:
            self._count(began)

    def _count(self, now: float) -> None:
        """Split the process's CPU time by how long turns took; while one service had its turn, the others waited."""
        cpu_s = time.process_time()
        spent_s, turned_s = cpu_s - self._counted_cpu_s, sum(self._turned_s) or 1.0
        for service, seconds in zip(self.services, self._turned_s, strict=True):
            service.count_wait(turned_s - seconds)
            service.usage.add_cpu_time(spent_s * seconds / turned_s)
        self._turned_s = [0.0] * len(self.services)
        self._counted_at, self._counted_cpu_s = now, cpu_s

    def _wait(self) -> None:
        """Wait until there is something for one of the services."""
        timeout_s = max(0.0, min(MAX_WAIT_S, *(each.deadline() - each.clock() for each in self.services)))
        if (pollers := [service.poller for service in self.services]) != self._pollers:
            self._pollers, self._poller = pollers, Poller.union(pollers)
        before = time.monotonic()
        self._poller.wait(timeout_s)
        for service in self.services:
            service.count_wait(time.monotonic() - before)
