"""What the services report about themselves, gathered in a thread: a page that never answers delays no other.

Every `PERIOD_S` the gatherer reads each child's health page, its CPU share, and the new warnings of its log; `snapshot`
hands out the newest of each at once.
"""

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from zerobeast.common.files.opening import opened
from zerobeast.common.health.figures import ServiceView, number
from zerobeast.common.health.pages import announced_page
from zerobeast.launcher.attached import Attached
from zerobeast.launcher.child import Child

PERIOD_S = 1.0
USAGE_PERIOD_S = 2.0  #: finding a process's helpers reads all of /proc
ANSWER_LIMIT_S = 1.0
MAX_LOG_READ = 64 * 1024
KEPT_WARNINGS = 3
HAS_HELPERS = ("envserver", "worker")  #: roles that step environments in processes of their own
#: "12:00:01.250 learner-0 W message", as `zerobeast.common.process.logs` writes it
_WARNING = re.compile(r"[\d:.]+ \S+ [WEC] (.+)")


@dataclass(frozen=True)
class Snapshot:
    """All children at one moment, and the newest warnings of their logs, oldest first."""

    services: tuple[ServiceView, ...] = ()
    warnings: tuple[str, ...] = ()

    def page(self, role: str) -> dict[str, Any]:
        """The page of the first service of a role, empty if there is none."""
        return next((service.page for service in self.services if service.role == role), {})


class Gatherer:
    """Reads the pages of children until it is closed.

    Usage: `with Gatherer(lambda: children) as pages: pages.snapshot()`.

    Args:
      find: returns the children whose pages are read, now and every PERIOD_S; of one without pages, the log alone.
        While it returns none, those before are read.
      watch: called in the gatherer's thread with each new snapshot.
    """

    def __init__(
        self, find: Callable[[], Sequence[Child | Attached]], watch: Callable[[Snapshot], None] | None = None
    ) -> None:
        self._find, self._watch = find, watch
        self._children: Sequence[Child | Attached] = ()
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
                    self._note(source.log.new_warnings())
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

    def __init__(self, child: Child | Attached) -> None:
        self.child = child
        self._pages: dict[str, dict[str, Any]] = {role: {} for role in child.spec.statuses}
        self._pages_at = dict.fromkeys(self._pages, time.monotonic())
        self._cpu_share: float | None = None
        self._cpu_s = self._usage_at = 0.0
        self.log = _Log(child.spec.name, child.spec.log)

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
        for role, status in self.child.spec.statuses.items():
            if page := announced_page(status, ANSWER_LIMIT_S, remote=self.child.remote):
                self._pages[role], self._pages_at[role] = page, time.monotonic()
        if self.child.pid > 0 and time.monotonic() >= self._usage_at + USAGE_PERIOD_S:
            with contextlib.suppress(psutil.Error):  # one of them ended meanwhile: keep the last figures
                self._measure(time.monotonic())

    def _measure(self, now: float) -> None:
        process = psutil.Process(self.child.pid)
        family = [process, *(process.children(recursive=True) if self.child.spec.role in HAS_HELPERS else [])]
        cpu_s = sum(sum(member.cpu_times()[:2]) for member in family)
        if self._usage_at:
            self._cpu_share = max(0.0, (cpu_s - self._cpu_s) / (now - self._usage_at))
        self._cpu_s, self._usage_at = cpu_s, now


class _Log:
    """What is added to the log of a process from now on."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._at = path.stat().st_size if path.exists() else 0

    def new_warnings(self) -> list[str]:
        data = b""
        with contextlib.suppress(OSError), opened(self._path) as log:
            if self._path.stat().st_size < self._at:  # it has begun anew
                self._at = 0
            log.seek(self._at)
            data = log.read(MAX_LOG_READ)
        whole = data[: data.rfind(b"\n") + 1] if len(data) < MAX_LOG_READ else data
        self._at += len(whole)
        matches = map(_WARNING.match, whole.decode(errors="replace").splitlines())
        return [f"{self._name}: {match[1]}" for match in matches if match]
