"""All services of a run as processes of their own, any of which may be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from zerobeast.common.errors import BeastError
from zerobeast.common.health.pages import announced_page
from zerobeast.common.runtime.roles import ROLES, STOPPING
from zerobeast.launcher.child import Child
from zerobeast.tools.bench.services import Services

TURN_S = 0.05
PAGE_LIMIT_S = 1.0
STOP_LIMIT_S = 10.0  #: for a service to end in order


class Seen(NamedTuple):
    """A page and when it was read."""

    child: Child
    page: dict[str, Any]
    at: float


class Fleet(Services):
    """The services of a run on unix sockets.

    Actor i uses env-server i and broker i, counted around.

    Args:
      flags: settings of the run; `local` says how many actors and env-servers there are.
      folder: an empty one with a short path, for files and sockets.
      brokers: how many.
      modules: to run instead of `services.<role>`, by role.
    """

    def __init__(
        self, flags: Sequence[str], folder: Path, brokers: int = 1, modules: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(flags, folder)
        self._brokers, self._modules = brokers, modules
        self.frozen: set[str] = set()  #: names of those that are stopped and will go on
        self.down: set[str] = set()  #: names of those that are meant to have ended

    def __enter__(self) -> Self:
        super().__enter__()
        local = self.config.local
        counts = {"learner": 1, "broker": self._brokers, "envserver": local.env_servers, "actor": local.actors}
        for role in ROLES:
            for index in range(counts[role]):
                self._start_one(role, index)
        return self

    def __exit__(self, *error: Any) -> None:
        for name in list(self.frozen):
            self.thaw(name)
        super().__exit__(*error)

    def _start_one(self, role: str, index: int) -> None:
        local = self.config.local
        places = {
            "--envserver.endpoint": f"e{index % local.env_servers}",
            "--broker.endpoint": f"b{index % self._brokers}",
        }
        flags = [text for flag, place in places.items() for text in (flag, f"ipc://{self.folder}/{place}")]
        self.start(role, *flags, module=self._modules.get(role, ""))

    @property
    def learner_endpoint(self) -> str:
        """Where the learner is reached."""
        return f"ipc://{self.folder}/l"

    def child(self, name: str) -> Child:
        """The process that people call "broker 1"."""
        return next(child for child in self.children if child.spec.name == name)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to its helpers."""
        os.kill(self.child(name).pid, number)

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self.frozen.add(name)
        self.send(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.send(name, signal.SIGCONT)
        self.frozen.discard(name)

    def end(self, names: Sequence[str], number: signal.Signals) -> dict[str, int]:
        """Send SIGTERM or SIGKILL to some at once and wait; returns exit codes by name.

        Raises:
          BeastError: one does not end.
        """
        self.down.update(names)
        for name in names:
            self.send(name, number)
        deadline = time.monotonic() + STOP_LIMIT_S
        while running := [name for name in names if self.child(name).running]:
            if time.monotonic() > deadline:
                raise BeastError(f"{running[0]} has not ended {STOP_LIMIT_S:.0f} s after {number.name}")
            time.sleep(TURN_S)
        return {name: self.child(name).poll() or 0 for name in names}

    def restart(self, name: str) -> None:
        """Start one that has ended again."""
        self.child(name).start()
        self.down.discard(name)

    def look(self) -> list[Seen]:
        """The pages of all that answer now.

        Raises:
          BeastError: a service has ended by itself.
        """
        seen = []
        for child in self.children:
            name = child.spec.name
            if name in self.down or name in self.frozen:
                continue
            if child.poll() is not None:
                raise BeastError(f"{child.explain()}")
            page = announced_page(child.spec.status, PAGE_LIMIT_S)
            if page and page.get("pid") == child.pid:
                seen.append(Seen(child, page, time.monotonic()))
        return seen

    def retire(self) -> dict[str, int]:
        """Ask everybody to end in order, actors first and the learner last; returns exit codes by name."""
        codes: dict[str, int] = {}
        for role in STOPPING:
            codes |= self.end([child.spec.name for child in self.children if child.spec.role == role], signal.SIGTERM)
        return codes
