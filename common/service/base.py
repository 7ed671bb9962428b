"""The shape that every service shares: open, ready, take turns, drain, close.

`zerobeast.common.service.loop` gives a service its turns, alone or beside others in its process. Anything subtle lives
in modules without sockets or clocks that these turns call.
"""

import contextlib
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from zerobeast.common.health.hops import Hops
from zerobeast.common.health.progress import Progress
from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.common.process.logs import WARNINGS
from zerobeast.common.process.usage import WARNING_SHARE, Usage
from zerobeast.common.service.computation import Computation
from zerobeast.common.settings import SecurityConfig
from zerobeast.common.transport import Context, Poller, open_context

log = logging.getLogger(__name__)

REPORT_PERIOD_S = 0.5
BUSY_SPAN_S = 5.0
DRAIN_LIMIT_S = 4.0
LINGER_S = 30.0  #: a service of a run that is over lives as long: compose takes one that was never healthy for failed
MIN_BUSY_CORES = 0.05  #: cores in use by a computation that gets on, however long it takes
STANDSTILL_S = 5.0  #: a longer gap between two turns means that this process was stopped, not that its peers were


class Service(ABC):
    """One service of a process, in one thread. Between its turns it waits for what `poller` waits for."""

    role: ClassVar[str]
    work: ClassVar[tuple[str, ...]] = ("agent_steps",)  #: numbers of `report`: each piece of work done changes one

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  #: monotonic seconds
        self.stopping = False  #: set once, also by signal handlers
        self.state = "starting"
        self.outcome = ""  #: what it has done, once nothing is left to do
        self.run_name = ""  #: for the health page
        self.computing = Computation(clock)  #: what its thread does without the sockets
        self.started_at = clock()
        self.loop_at = clock()  #: when the loop last turned
        self.alive_at = clock()  #: when a turn that takes long last made progress; the page shows the age of the newer
        self.awake_since = clock()  #: since when the loop has had no standstill: no silence is older than that
        self.page: dict[str, Any] = {}  #: what the health page serves, written by the loop alone
        self._report_at = 0.0
        self._files_scarce = False
        self.hops = Hops(self.role, clock())  #: durations of the hops that `zerobeast.common.health.hops` lists
        self.usage, self._waited_idle_s = Usage(clock()), 0.0
        self._busy = SlidingWindow(BUSY_SPAN_S)
        self._progress = Progress(clock())
        self.resources = contextlib.ExitStack()  #: what `open` took
        self._shared: Context | None = None  #: the context of its process, if that has several services
        self.contexts: list[Context] = []
        self.poller = Poller()  #: what it waits for now; replaced when sockets come or go

    def share(self, context: Context, services: int) -> None:
        """Share a process and this context with other services, `services` in all. Call before `start`."""
        self._shared = context
        self.usage.share(services)

    def start(self) -> None:
        """Open, and be ready."""
        self._refresh(self.clock())
        self.open()
        self.state = "ready"
        log.info("ready")

    def turn(self) -> None:
        """Take what is there, and do what is due; never waits."""
        self._awake()
        self.take()
        now = self._awake()
        self.tick(now)
        if now >= self._report_at:
            self._refresh(now)

    def attend(self) -> bool:
        """Do what cannot wait until a lasting computation ends; called in another thread, which has the sockets.

        Returns:
          Whether the service has ended, and the computation with it.
        """
        if (now := self.clock()) >= self._report_at:
            self._refresh(now)
        return False

    def finish(self) -> None:
        """Drain, after the last turn."""
        self.state = "draining"
        self._refresh(self.clock())
        self.drain()

    def _awake(self) -> float:
        """Return the time, and note any standstill before it."""
        now = self.clock()
        if now - self.loop_at > STANDSTILL_S:
            self.awake_since = now
        self.loop_at = now
        return now

    def note_progress(self) -> None:
        """Note progress within a turn. No messages were read meanwhile, so it does not end a standstill."""
        self.alive_at = self.clock()

    def stop(self) -> None:
        """Ask the loop to end. Safe in a signal handler: it sets a flag and nothing more."""
        self.stopping = True

    def _refresh(self, now: float) -> None:
        self._report_at = now + REPORT_PERIOD_S
        report, usage, computing_s = self.report(), self.usage.measure(now), self.computing.lasting_s
        if gets_on := computing_s > 0 and usage["cpu_share"] > MIN_BUSY_CORES:
            self.alive_at = now
        self._progress.note(
            [report.get(key, 0) for key in self.work],
            idle=gets_on or self.state != "ready" or self.idle(),
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
            "computing_s": round(computing_s, 1),
            "warnings": [*WARNINGS],
            **usage,
            "hops": self.hops.page(now),
            **report,
        }
        used, most = self.page["open_files"], self.page["max_files"]
        scarce = used > WARNING_SHARE * most
        if scarce and not self._files_scarce:  # once, and again if they get scarce another time
            log.warning("%d of %d files are open, connections among them: raise `ulimit -n`", used, most)
        self._files_scarce = scarce

    def count_wait(self, seconds: float) -> None:
        """Count seconds in which its process waited for input or other services had their turns."""
        if not self.works_elsewhere():
            self._waited_idle_s += seconds

    def open_context(self, security: SecurityConfig) -> Context:
        """The context of its sockets, which ends with `resources`."""
        context = open_context(security, self.role, self._shared)
        self.contexts.append(context)
        self.resources.callback(context.term)
        return context

    @abstractmethod
    def open(self) -> None:
        """Take what the turns need: sockets, files, devices."""

    @abstractmethod
    def take(self) -> None:
        """Take what is there; never waits."""

    def tick(self, now: float) -> None:
        """Do what is due by time. Called after every `take`."""

    def deadline(self) -> float:
        """When there is something to do without input, in seconds of `clock`."""
        return float("inf")

    def works_elsewhere(self) -> bool:
        """Whether another process is working for this service, so that it is not idle while it waits."""
        return False

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
