"""The services of one run as child processes, started one by one: for benchmarks that put something between them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zerobeast.common.config.load import dump, load
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import BeastError
from zerobeast.common.health.pages import announced_page
from zerobeast.common.runtime.files import write_atomically
from zerobeast.launcher.child import Child, ChildSpec
from zerobeast.launcher.fleet import child_environ, child_flags, endpoint_flags, service_command
from zerobeast.launcher.run_folder import CONFIG
from zerobeast.launcher.spaces import spec_of
from zerobeast.launcher.threads import thread_flags

START_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0


class Services:
    """Starts services on unix sockets and ends them all.

    Usage: `with Services(flags, folder) as run: run.start("learner"); ...; run.rate(warmup_s, seconds)`.

    Args:
      flags: settings of the run.
      folder: an empty one with a short path, for files and sockets.
    """

    def __init__(self, flags: Sequence[str], folder: Path) -> None:
        own = ["--name", "bench", "--root", str(folder), "--total_steps", str(10**9)]
        self.config: RunConfig = load([*flags, *own], os.environ, describe=spec_of)
        self.folder = folder
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        self.config.folder.mkdir(parents=True)
        write_atomically(self.config.folder / CONFIG, dump(self.config))
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        for child in self.children:
            child.terminate()
        deadline = time.monotonic() + STOP_LIMIT_S
        while any(child.running for child in self.children) and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in self.children:
            child.kill()
            child.poll()

    def start(self, role: str, *flags: str, module: str = "") -> Child:
        """Start one more service.

        Args:
          role: which.
          flags: over those of the run.
          module: to run instead of `services.<role>`, with the same flags.
        """
        index = sum(child.spec.role == role for child in self.children)
        status, log = (self.folder / f"{role}-{index}.{ending}" for ending in ("json", "log"))
        command = service_command(
            role,
            *child_flags(self.config.folder / CONFIG, status),
            *("--index", str(index)),
            *endpoint_flags(self.folder, 0),
            *thread_flags(self.config),
            *flags,
        )
        if module:
            command = [sys.executable, "-P", "-m", module, *command[4:]]
        child = Child(ChildSpec(role, index, command, child_environ(os.environ), log, status))
        child.start()
        self.children.append(child)
        return child

    def pages(self, role: str) -> list[dict[str, Any]]:
        """The health pages of all services of a role that answer."""
        found = (announced_page(child.spec.status, 5.0) for child in self.children if child.spec.role == role)
        return [page for page in found if page]

    def agent_steps(self) -> int:
        """What the learner has learned from so far."""
        return sum(int(page.get("agent_steps", 0)) for page in self.pages("learner"))

    def rate(self, warmup_s: float, seconds: float) -> float:
        """Wait until it trains, then `warmup_s` more, and measure agent steps a second.

        Raises:
          BeastError: it does not train, or a service has ended.
        """
        deadline = time.monotonic() + START_LIMIT_S
        while not self.agent_steps():
            self._check(started=time.monotonic() < deadline)
            time.sleep(0.2)
        time.sleep(warmup_s)
        steps, since = self.agent_steps(), time.monotonic()
        time.sleep(seconds)
        rate = (self.agent_steps() - steps) / (time.monotonic() - since)
        self._check(started=True)
        return rate

    def _check(self, *, started: bool) -> None:
        for child in self.children:
            if child.poll() is not None:
                raise BeastError(child.explain())
        if not started:
            raise BeastError(f"training did not start within {START_LIMIT_S:.0f} s; the logs are in {self.folder}")


@contextlib.contextmanager
def paused(folder: Path) -> Iterator[None]:
    """All services with status files in a folder, stopped in their tracks. For less than the time that they wait for a
    silent peer.
    """
    try:
        _signal(folder, signal.SIGSTOP)
        yield
    finally:
        _signal(folder, signal.SIGCONT)


@contextlib.contextmanager
def resumed(folder: Path) -> Iterator[None]:
    """Services that are `paused`, going on for a while."""
    try:
        _signal(folder, signal.SIGCONT)
        yield
    finally:
        _signal(folder, signal.SIGSTOP)


def _signal(folder: Path, number: signal.Signals) -> None:
    for path in folder.glob("*.json"):
        with contextlib.suppress(ProcessLookupError):  # it has ended, and must not keep the others as they are
            os.kill(int(json.loads(path.read_text())["pid"]), number)
