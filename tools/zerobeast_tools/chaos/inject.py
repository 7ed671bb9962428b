"""Injects faults into a running fleet, and waits until the run has recovered or its time is up."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zerobeast.common.errors import BeastError
from zerobeast_tools.chaos.faults import FaultKind, ServiceFault
from zerobeast_tools.chaos.progress import ENOUGH_SHARE, SETTLED_S, WINDOW_S, Interval
from zerobeast_tools.chaos.watch import RunWatch
from zerobeast_tools.throwaway_run import ThrowawayRun

BEGIN_LIMIT_S = 180.0  #: for a run to learn
START_LIMIT_S = 120.0  #: for a process to be ready
RECOVERY_LIMIT_S = 10.0  #: the guarantee
WATCHED_S = 30.0  #: for how long a run that has not recovered is watched


@dataclass
class Event:
    """A fault and its outcome. Moments are seconds of the clock, or None if they never came."""

    fault: ServiceFault
    at: float
    over_at: float = 0.0  #: all targets are started again, or resumed
    ready_at: float = 0.0  #: all of them are ready
    back_at: float | None = None  #: the run is back at its rate
    usual: float | None = None  #: rollouts per second before the fault
    lost: int = 0  #: rollouts
    broken: str = ""  #: the guarantee that broke, in words

    @property
    def start_s(self) -> float:
        """How long processes took to be ready."""
        return self.ready_at - self.over_at

    @property
    def recovery_s(self) -> float | None:
        """How long it took from ready until the run was back at its rate."""
        return None if self.back_at is None else max(0.0, self.back_at - self.ready_at)

    def __str__(self) -> str:
        """The event as a sentence for people."""
        fault, back = self.fault, "never" if self.recovery_s is None else f"{self.recovery_s:.1f} s"
        what = "stopped" if fault.kind is FaultKind.STOP else f"started in {self.start_s:.1f} s, down"
        usual = "" if self.usual is None else f" to {self.usual:.0f}/s"
        names = " + ".join(fault.targets)
        return (
            f"{fault.kind} {names}: {what} for {fault.pause_s:.1f} s, back{usual} in {back}, {self.lost} rollouts lost"
        )

    def as_dict(self, start: float) -> dict[str, Any]:
        """For JSON, moments in seconds since the start."""
        moments = {name: round(getattr(self, name) - start, 2) for name in ("at", "over_at", "ready_at")}
        spans = {"start_s": self.start_s, "recovery_s": self.recovery_s}
        return self.fault._asdict() | moments | spans | {"usual": self.usual, "lost": self.lost, "broken": self.broken}


@contextmanager
def disturbed_run(
    flags: Sequence[str], folder: Path, *, brokers: int = 1, modules: Mapping[str, str] = MappingProxyType({})
) -> Iterator[FaultInjector]:
    """A run that has begun to learn; see `ThrowawayRun`.

    Raises:
      BeastError: it does not begin, or a service has ended.
    """
    with ThrowawayRun(flags, folder, brokers=brokers, modules=modules) as fleet, closing(RunWatch(fleet)) as watch:
        fleet.start_all()
        if not watch.until(time.monotonic() + BEGIN_LIMIT_S, lambda: watch.progress.total(time.monotonic()) > 0):
            raise BeastError(f"training did not start within {BEGIN_LIMIT_S:.0f} s")
        yield FaultInjector(fleet, watch)


class FaultInjector:
    """Injects faults into a fleet, one after the other, and watches the run recover."""

    def __init__(self, fleet: ThrowawayRun, watch: RunWatch) -> None:
        self.fleet, self.watch = fleet, watch
        self.events: list[Event] = []

    def do(self, fault: ServiceFault) -> Event:
        """Inject a fault, and wait until the run is back at its rate or has been watched for long enough.

        Raises:
          BeastError: a service ended by itself, does not end when asked to, or does not become ready.
        """
        watch, before = self.watch, self.watch.audit.balance().lost
        event = Event(fault, time.monotonic(), usual=watch.progress.usual(time.monotonic(), self.disturbances()))
        self.events.append(event)
        if fault.kind is FaultKind.STOP:
            self._stop(event)
            event.ready_at = event.over_at
        else:
            self._end(event)
            self._wait_until_ready(event)
        self._see_it_back(event)
        event.lost = watch.audit.balance().lost - before
        return event

    def disturbances(self) -> list[Interval]:
        """The intervals from each fault until the run was back."""
        return [(event.at, event.back_at or event.ready_at + WATCHED_S) for event in self.events]

    @property
    def starts_of_the_learner(self) -> int:
        """How often the learner was started after the first time, at most."""
        return sum("learner 0" in self._find_ended(event) for event in self.events)

    def _find_ended(self, event: Event) -> list[str]:
        """The services that end by a fault: its targets and, with one rank of the learner, the others."""
        return self.fleet.with_ranks(event.fault.targets)

    def _stop(self, event: Event) -> None:
        for name in event.fault.targets:
            self.fleet.freeze(name)
        self.watch.until(time.monotonic() + event.fault.pause_s)
        for name in event.fault.targets:
            self.fleet.thaw(name)
        event.over_at = time.monotonic()

    def _end(self, event: Event) -> None:
        number, all_ended = signal.Signals[event.fault.kind], self._find_ended(event)
        self.fleet.down.update(all_ended)
        for name, code in self.fleet.end(event.fault.targets, number).items():
            if event.fault.kind is FaultKind.TERM and code != 0:
                event.broken = f"{name} ended with exit code {code} after SIGTERM"
        self.fleet.await_ranks(all_ended[len(event.fault.targets) :])
        for name in all_ended:
            self.watch.forget(name)
        self.watch.until(time.monotonic() + event.fault.pause_s)
        for name in all_ended:
            self.fleet.restart(name)
        event.over_at = time.monotonic()

    def _wait_until_ready(self, event: Event) -> None:
        names, ready = set(self._find_ended(event)), self.watch.ready
        if not self.watch.until(time.monotonic() + START_LIMIT_S, lambda: names <= ready.keys()):
            raise BeastError(f"{', '.join(sorted(names - ready.keys()))} not ready after {START_LIMIT_S:.0f} s")
        event.ready_at = max(ready[name] for name in names)

    def _see_it_back(self, event: Event) -> None:
        if event.usual is None:
            self.watch.until(time.monotonic() + SETTLED_S)
            event.back_at = event.ready_at
            return
        goal = ENOUGH_SHARE * event.usual
        event.back_at = self.watch.until(
            event.ready_at + WATCHED_S + WINDOW_S, lambda: self.watch.progress.back(event.ready_at, goal)
        )
        recovery_s = event.recovery_s
        if recovery_s is None or recovery_s > RECOVERY_LIMIT_S:
            seen = f"{WATCHED_S:.0f} s" if recovery_s is None else f"{recovery_s:.1f} s"
            event.broken = (
                event.broken or f"{event.fault.title}: not back at {ENOUGH_SHARE:.0%} of its rate within {seen}"
            )
