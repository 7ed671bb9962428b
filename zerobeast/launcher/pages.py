"""What the services report about themselves, gathered in a thread: a page that never answers delays no other.

Every `PERIOD_S` the gatherer reads each child's health page, which has its newest warnings, and its CPU share;
`snapshot` hands out the newest of each at once.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psutil

from zerobeast.common.files.regular_files import read_small_json
from zerobeast.common.health.figures import ServiceView, number
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.common.process.logs import MAX_WARNING
from zerobeast.common.process.roles import SERVICES_BY_PROCESS
from zerobeast.launcher.child import Child
from zerobeast.launcher.foreign_processes import ForeignProcess

PERIOD_S = 1.0
USAGE_PERIOD_S = 2.0  #: finding a process's helpers reads all of /proc
ANSWER_LIMIT_S = 1.0
KEPT_WARNINGS = 3


@dataclass(frozen=True)
class Snapshot:
    """All children at one moment, and their newest warnings, oldest first."""

    services: tuple[ServiceView, ...] = ()
    warnings: tuple[str, ...] = ()

    def page(self, role: str) -> dict[str, Any]:
        """The page of the first service of a role, empty if there is none."""
        return next((service.page for service in self.services if service.role == role), {})


class Gatherer:
    """Reads the pages of children until it is closed.

    Usage: `with Gatherer(lambda: children) as pages: pages.snapshot()`.

    Args:
      find: returns the children whose pages are read, now and every PERIOD_S; of one that hosts no service, the
        warnings in its status file alone. While it returns none, those before are read.
      watch: called in the gatherer's thread with each new snapshot.
    """

    def __init__(
        self, find: Callable[[], Sequence[Child | ForeignProcess]], watch: Callable[[Snapshot], None] | None = None
    ) -> None:
        self._find, self._watch = find, watch
        self._children: Sequence[Child | ForeignProcess] = ()
        self._sources: list[_Source] = []
        self._attach()
        self._warnings: deque[str] = deque(maxlen=KEPT_WARNINGS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.set()
        self._thread.join(timeout=2 * ANSWER_LIMIT_S)

    def snapshot(self) -> Snapshot:
        """The newest of everything; never waits."""
        now = time.monotonic()
        views = (view for source in self._sources for view in source.views(now))
        return Snapshot(tuple(views), tuple(self._warnings))

    def _attach(self) -> None:
        found = self._find()
        if found and found != self._children:
            self._children, self._sources = found, [_Source(child) for child in found]

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            try:
                self._attach()
            except Exception as error:  # those that are known are read
                self._note([f"the processes of the run cannot be found: {error!r}"])
            for source in self._sources:
                try:
                    source.refresh()
                    self._note(source.new_warnings())
                except Exception as error:  # whatever is wrong with one page, the others are read
                    self._note([f"{source.child.spec.name}: its page cannot be read: {error!r}"])
            if self._watch:
                self._watch(self.snapshot())

    def _note(self, warnings: list[str]) -> None:
        """Keep warnings whose reason, after who did what, is not shown already: several services may give it."""
        for warning in warnings:
            if not any(shown.endswith(warning.split(": ", 2)[-1]) for shown in self._warnings):
                self._warnings.append(warning)


class _Source:
    """What is known of one child. The gatherer's thread writes whole values, the launcher's thread reads them."""

    def __init__(self, child: Child | ForeignProcess) -> None:
        self.child = child
        self._pages: dict[str, dict[str, Any]] = {
            role: {} for role in child.spec.statuses if role in SERVICES_BY_PROCESS
        }
        self._pages_at = dict.fromkeys(self._pages, time.monotonic())
        self._cpu_share: float | None = None
        self._cpu_s = self._usage_at = 0.0
        self._warned: set[tuple[str, ...]] = set()

    def views(self, now: float) -> Iterator[ServiceView]:
        """Each of its services. The CPU share of the process is divided by the CPU time on their pages."""
        used = {role: number(page, "cpu_s") or 0.0 for role, page in self._pages.items()}
        for role, page in self._pages.items():
            part = used[role] / total if (total := sum(used.values())) else 1 / len(used)
            yield ServiceView(
                name=f"{role} {self.child.spec.index}",
                role=role,
                page=page,
                silent_s=now - self._pages_at[role],
                cpu_share=self._cpu_share and self._cpu_share * part,
                code=self.child.code,
            )

    def refresh(self) -> None:
        if self.child.pid == 0 or self.child.code is not None:
            return
        for role in self._pages:
            if page := fetch_announced_page(self.child.spec.statuses[role], ANSWER_LIMIT_S, remote=self.child.remote):
                self._pages[role], self._pages_at[role] = page, time.monotonic()
        if self.child.pid > 0 and time.monotonic() >= self._usage_at + USAGE_PERIOD_S:
            with contextlib.suppress(psutil.Error):  # one of them ended meanwhile: keep the last figures
                self._measure(time.monotonic())

    def new_warnings(self) -> list[str]:
        pages = self._pages.values() or map(read_small_json, self.child.spec.statuses.values())
        found = dict.fromkeys(warning for page in pages for warning in _warnings(page))
        news = [text for *which, text in found if (*which, text) not in self._warned]
        self._warned = {*found}
        return [f"{self.child.spec.name}: {text}" for text in news]

    def _measure(self, now: float) -> None:
        process = psutil.Process(self.child.pid)
        hosts_envs = "envserver" in SERVICES_BY_PROCESS.get(self.child.spec.role, ())
        family = [process, *(process.children(recursive=True) if hosts_envs else [])]
        cpu_s = sum(sum(member.cpu_times()[:2]) for member in family)
        if self._usage_at:
            self._cpu_share = max(0.0, (cpu_s - self._cpu_s) / (now - self._usage_at))
        self._cpu_s, self._usage_at = cpu_s, now


def _warnings(page: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Process, number and text of each warning on a page, which may hold anything."""
    found = page.get("warnings")
    for entry in found if isinstance(found, list) else ():
        match entry:
            case [number, text]:
                yield str(page.get("pid")), str(number), str(text)[:MAX_WARNING]
