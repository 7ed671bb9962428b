"""A run in a folder that is thrown away, whose services are started one by one or all together, and its rate."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from zerobeast.common.config.load import dump, load
from zerobeast.common.errors import BeastError
from zerobeast.common.runtime import run_files
from zerobeast.common.runtime.files import write_atomically
from zerobeast.launcher.fleet import Fleet
from zerobeast.launcher.spaces import spec_of

START_LIMIT_S = 120.0


class ThrowawayRun(Fleet):
    """A fleet on unix sockets that trains without an end.

    Usage: `with ThrowawayRun(flags, folder) as run: run.start("learner"); ...; run.rate(warmup_s, seconds)`.

    Args:
      flags: settings of the run; `local` says how many actors and env-servers `start_all` starts.
      folder: an empty one with a short path, for files and sockets.
      brokers: how many.
      modules: to run instead of `zerobeast.services.<role>`, by role.
    """

    def __init__(
        self, flags: Sequence[str], folder: Path, *, brokers: int = 1, modules: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        own = ["--name", "run", "--root", str(folder), "--total_steps", str(10**9)]
        config = load([*flags, *own], os.environ, describe=spec_of)
        super().__init__(config, folder, os.environ, brokers=brokers, modules=modules)
        self.folder = folder

    def __enter__(self) -> Self:
        for name in (run_files.LOGS, run_files.SERVICES):
            (self.config.folder / name).mkdir(parents=True)
        write_atomically(self.config.folder / run_files.CONFIG, dump(self.config))
        return super().__enter__()

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
