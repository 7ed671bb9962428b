"""The shape that every service shares: open, ready, loop, drain, close.

One thread, one loop. What is subtle lives in modules without sockets or clocks that this loop calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from zerobeast.common.health.hops import Hops
from zerobeast.common.health.progress import Progress
from zerobeast.common.runtime.descriptors import NEARLY
from zerobeast.common.runtime.sliding_window import SlidingWindow
from zerobeast.common.runtime.usage import Usage

if TYPE_CHECKING:
    from zerobeast.common.transport import Poller

log = logging.getLogger(__name__)

MAX_POLL_S = 0.1  #: bound on how late a signal or a tick is noticed
REPORT_PERIOD_S = 0.5
BUSY_SPAN_S = 5.0
DRAIN_LIMIT_S = 4.0
STANDSTILL_S = 5.0  #: between two turns, from where on this process was stopped, and knows nothing of its peers


class Service(ABC):
    """A process with one loop."""

    role: ClassVar[str]
    work: ClassVar[tuple[str, ...]] = ("agent_steps",)  #: numbers of `report`: each piece of work done changes one

    def __init__(self, *, supervisor_pid: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  #: monotonic seconds
        self.supervisor_pid = supervisor_pid  #: it ends when this is no longer its parent; 0: never
        self.stopping = False  #: set once, also by signal handlers
        self.state = "starting"
        self.run_name = ""  #: for the health page
        self.started_at = clock()
        self.loop_at = clock()  #: when the loop last turned; the health page shows its age
        self.awake_since = clock()  #: since when it has turned without a standstill: no silence is older than that
        self.page: dict[str, Any] = {}  #: what the health page serves, written by the loop alone
        self._report_at = 0.0
        self._files_scarce = False
        self.hops = Hops(self.role, clock())  #: how long what takes; `zerobeast.common.health.hops` says which
        self._usage, self._waited_idle_s = Usage(clock()), 0.0
        self._busy = SlidingWindow(BUSY_SPAN_S)
        self._progress = Progress(clock())
        self.resources = contextlib.ExitStack()  #: what `open` took

    def run(self) -> int:
        """Run until told to stop; return the exit code."""
        try:
            self._refresh(self.clock())
            self.open()
            self.state = "ready"
            log.info("ready")
            while not self.stopping:
                self._turn()
            self.state = "draining"
            self._refresh(self.clock())
            self.drain()
        finally:
            self.close()
        return 0

    def _turn(self) -> None:
        self.poll(min(MAX_POLL_S, max(0.0, self.deadline() - self._awake())))
        now = self._awake()
        self.tick(now)
        if now >= self._report_at:
            self._refresh(now)
        if self.supervisor_pid and os.getppid() != self.supervisor_pid:
            log.warning("the supervisor is gone: stopping")
            self.stop()

    def _awake(self) -> float:
        """The time, and a note of any standstill before it."""
        now = self.clock()
        if now - self.loop_at > STANDSTILL_S:
            self.awake_since = now
        self.loop_at = now
        return now

    def stop(self) -> None:
        """Ask the loop to end. Safe in a signal handler: it sets a flag and nothing more."""
        self.stopping = True

    def _refresh(self, now: float) -> None:
        self._report_at = now + REPORT_PERIOD_S
        report = self.report()
        self._progress.note(
            [report.get(key, 0) for key in self.work],
            idle=self.state != "ready" or self.idle(),
            refused=report.get("refused_by_reason", {}),
            now=now,
            awake_since=self.awake_since,
        )
        (busy,) = self._busy.per_s(now, now - self._waited_idle_s)
        self.page = {
            "role": self.role,
            "run": self.run_name,
            "state": self.state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "uptime_s": round(now - self.started_at, 3),
            **self._progress.page(now),
            "busy_fraction": round(max(0.0, busy), 3),
            **self._usage.measure(now),
            "hops": self.hops.page(now),
            **report,
        }
        self._warn_of_files(self.page["open_files"], self.page["max_files"])

    def _warn_of_files(self, used: int, most: int) -> None:
        """Say so once when files get scarce, and again after they were not."""
        scarce = used > NEARLY * most
        if scarce and not self._files_scarce:
            log.warning("%d of %d files are open, connections among them: raise `ulimit -n`", used, most)
        self._files_scarce = scarce

    def wait(self, poller: Poller, timeout_s: float, *, idle: bool = True) -> float:
        """Wait for input; returns the seconds that passed.

        If `idle`, nothing is being worked on meanwhile, in another process or on a device.
        """
        before = self.clock()
        poller.wait(timeout_s)
        waited_s = self.clock() - before
        if idle:
            self._waited_idle_s += waited_s
        return waited_s

    @abstractmethod
    def open(self) -> None:
        """Take what the loop needs: sockets, files, devices."""

    @abstractmethod
    def poll(self, timeout_s: float) -> None:
        """Wait for input at most `timeout_s`, then take what is there."""

    def tick(self, now: float) -> None:
        """Do what is due by time. Called after every poll."""

    def deadline(self) -> float:
        """When `tick` next has something to do, in seconds of `clock`."""
        return float("inf")

    def idle(self) -> bool:
        """Whether it has nothing to do until a peer asks for something. Called once it is ready."""
        return False

    def drain(self) -> None:
        """Stop taking work and finish what was accepted, within DRAIN_LIMIT_S."""

    def close(self) -> None:
        """Release everything. Always runs, and must work after a failed `open`."""
        self.resources.close()

    def report(self) -> dict[str, Any]:
        """Plain numbers and strings about the loop, for the health page."""
        return {}
