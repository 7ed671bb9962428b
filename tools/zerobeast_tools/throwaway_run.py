"""A run in a throw-away folder: start, suspend and end its services one by one or all, and measure its rate."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from zerobeast.common.config.load import dump, resolve_flags
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.process.roles import STOPPING_ORDER
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.child import Child, await_end, stop
from zerobeast.launcher.fleet import Fleet
from zerobeast.launcher.private_folder import private_folder
from zerobeast.plan.machine import fit_machine
from zerobeast.plan.placement import groups_of
from zerobeast.plan.processes import socket_endpoint
from zerobeast.plan.spaces import fetch_spec, pad_config
from zerobeast_tools.watched_run import WatchedRun

STOP_LIMIT_S = 10.0  #: for all services to end in order
END_LIMIT_S = 60.0  #: for a service that is ended on its own, even on a busy machine
PORTS = {"envserver": 5550, "broker": 5555, "learner": 5560}


def load_settings(flags: Sequence[str]) -> RunConfig:
    """Load the configuration from flags.

    Raises:
      ConfigError: a setting is wrong.
    """
    return pad_config(fit_machine(resolve_flags(flags, os.environ, describe=fetch_spec, groups=groups_of)).config)


@contextlib.contextmanager
def training(flags: Sequence[str], own: Sequence[str] = ()) -> Iterator[ThrowawayRun]:
    """Start all services of a run as `beast train` does and wait for the first update; see `ThrowawayRun`.

    Raises:
      BeastError: the run does not train.
    """
    with private_folder() as folder, ThrowawayRun(flags, folder, own=own, placement="auto") as run:
        run.start_all()
        run.until_it_trains()
        yield run


def unused_host() -> str:
    """A loopback address that is almost certainly unused, on all ports."""
    return ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])  # noqa: S311


def tcp_endpoints() -> dict[str, str]:
    """Role -> an unused endpoint for its server."""
    host = unused_host()
    return {role: f"tcp://{host}:{port}" for role, port in PORTS.items()}


class ThrowawayRun(WatchedRun, Fleet):
    """A fleet on unix sockets that trains until it is stopped.

    Usage: `with ThrowawayRun(flags, folder) as run: run.start("learner"); ...; run.rate(warmup_s, seconds)`.

    Args:
      flags: settings of the run; `local` sets how many actors and env-servers `start_all` starts.
      folder: an empty one with a short path, for files and sockets.
      brokers: how many to start.
      modules: modules to run instead of `zerobeast.services.<role>`, by role, with arguments that come first.
      own: flags for every service; they override its endpoints too.
      placement: used if `local.placement` is auto.

    Raises:
      ConfigError: a setting is wrong, or `local.placement` is serial.
    """

    def __init__(
        self,
        flags: Sequence[str],
        folder: Path,
        *,
        brokers: int = 1,
        modules: Mapping[str, str] = MappingProxyType({}),
        own: Sequence[str] = (),
        placement: str = "apart",
    ) -> None:
        config = load_settings([*flags, "--name", "run", "--root", str(folder), "--total_steps", str(10**9)])
        if config.local.placement == "serial":
            raise ConfigError("local.placement is serial, expected one of several processes: apart or fused")
        if config.local.placement == "auto":
            config = config.model_copy(update={"local": config.local.model_copy(update={"placement": placement})})
        super().__init__(config, folder, os.environ, flags=own)
        if self.plan.counts.get("broker"):
            self.plan.counts["broker"] = brokers
        self._modules = modules
        self.frozen: set[str] = set()  #: names of services that are suspended and will go on
        self.down: set[str] = set()  #: names of services that are meant to have ended
        self.folder = folder

    def __enter__(self) -> Self:
        for name in (run_files.LOGS, run_files.SERVICES):
            (self.config.folder / name).mkdir(parents=True)
        write_atomically(self.config.folder / run_files.CONFIG, dump(self.config), durable=False)
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.thaw_all()
        stop(self.children, STOP_LIMIT_S)

    def add(self, role: str, *flags: str) -> Child:
        """Add one more service, or the module that stands for it; see `Fleet`."""
        child = super().add(role, *flags)
        if role in self._modules:
            command = list(child.spec.command)
            at = command.index(f"zerobeast.services.{role}")
            child.spec = replace(child.spec, command=[*command[:at], *self._modules[role].split(), *command[at + 1 :]])
        return child

    def start(self, role: str, *flags: str) -> Child:
        """Start one more service; see `add`."""
        child = self.add(role, *flags)
        child.start()
        return child

    def start_all(self) -> None:
        for child in self.add_all():
            child.start()

    @property
    def learner_endpoint(self) -> str:
        return socket_endpoint(self.folder, "learner")

    def child(self, name: str) -> Child:
        """The process with a name such as "broker 1"."""
        return next(child for child in self.children if child.spec.name == name)

    def pages(self, role: str) -> list[dict[str, Any]]:
        """The health pages of all services of a role that answer."""
        return [page for child in self.children if role in child.spec.statuses and (page := child.page(role))]

    def freeze(self, name: str) -> None:
        """Send SIGSTOP to the process alone, not to its helpers."""
        self.frozen.add(name)
        os.kill(self.child(name).pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Send SIGCONT."""
        self.frozen.discard(name)
        with contextlib.suppress(ProcessLookupError):  # it has ended, and must not keep the others frozen
            os.kill(self.child(name).pid, signal.SIGCONT)

    def end(self, names: Sequence[str], number: signal.Signals) -> dict[str, int]:
        """Send SIGTERM or SIGKILL to several services at once and wait; returns exit codes by name.

        Raises:
          BeastError: a service does not end.
        """
        self.down.update(names)
        for name in names:
            os.kill(self.child(name).pid, number)
        if not await_end([self.child(name) for name in names], END_LIMIT_S):
            running = next(name for name in names if self.child(name).running)
            raise BeastError(f"{running} has not ended {END_LIMIT_S:.0f} s after {number.name}")
        return {name: self.child(name).poll() or 0 for name in names}

    def with_ranks(self, names: Sequence[str]) -> list[str]:
        """These services, and all ranks of the learner if one of them is among these: they end together."""
        role = self.children[0].spec.role
        ranks = [child.spec.name for child in self.children if child.spec.role == role]
        return [*names, *(rank for rank in ranks if rank not in names)] if set(ranks) & set(names) else list(names)

    def await_ranks(self, names: Sequence[str]) -> None:
        """Wait until these ranks, one of which was ended, have ended by themselves.

        Raises:
          BeastError: one does not end.
        """
        if not await_end([self.child(name) for name in names], END_LIMIT_S):
            raise BeastError(f"{', '.join(names)}: not ended {END_LIMIT_S:.0f} s after another rank")

    def restart(self, name: str) -> None:
        """Restart a service that has ended."""
        self.child(name).start()
        self.down.discard(name)

    def retire(self) -> dict[str, int]:
        """Ask all services to end in order, actors first and the learner last; returns exit codes by name."""
        codes: dict[str, int] = {}
        for role in STOPPING_ORDER:
            codes |= self.end([child.spec.name for child in self.children if child.spec.role == role], signal.SIGTERM)
        return codes

    def rate(self, warmup_s: float, seconds: float) -> float:
        """Wait until the run trains, then `warmup_s` more, and measure agent steps a second over `seconds`.

        Raises:
          BeastError: the run does not train, or a service has ended.
        """
        self.until_it_trains()
        time.sleep(warmup_s)
        steps, since = self.agent_steps(), time.monotonic()
        time.sleep(seconds)
        rate = (self.agent_steps() - steps) / (time.monotonic() - since)
        self.check()
        return rate

    def check(self) -> None:
        """Raise BeastError if a service has ended."""
        for child in self.children:
            if child.poll() is not None:
                raise BeastError(child.explain())

    def freeze_all(self) -> None:
        """Suspend all services, for less time than they wait for a silent peer."""
        for child in self.children:
            if child.running:
                self.freeze(child.spec.name)

    def thaw_all(self) -> None:
        """Resume all suspended services."""
        for name in list(self.frozen):
            self.thaw(name)
