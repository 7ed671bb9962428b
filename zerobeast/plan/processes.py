"""The processes of a run on this machine: a record for each, by which any supervisor can start it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zerobeast.common.config.layers import PREFIX
from zerobeast.common.config.trust import confirmation, decisive_values
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.health import status
from zerobeast.common.process.environ import NO_PLUGINS, drop_secrets
from zerobeast.common.process.roles import RECORDS, SERVERS, SERVICES_BY_PROCESS
from zerobeast.common.process.usage import MIN_FILES
from zerobeast.common.settings import RunConfig
from zerobeast.plan.placement import placement_of
from zerobeast.plan.run_folder import resume_step

RESTARTS = 3  #: by default
LEARNER = "learner"


class Restart(StrEnum):
    """After which endings a process that the run needs is started again."""

    NEVER = "never"
    KILLED = "killed"  #: what has ended it was a signal
    ALWAYS = "always"  #: any but bad input, which stays bad

    def allows(self, code: int) -> bool:
        """Whether it is started again after this exit code, below 0 for a signal; SIGTERM leads to 0."""
        return code <= 0 if self is Restart.KILLED else self is Restart.ALWAYS and code != ConfigError.exit_code


@dataclass(frozen=True)
class ProcessSpec:
    """One process: what to start, and what is known of it."""

    role: str  #: of the service, as in `python -m zerobeast.services.<role>`, or "tracker"
    index: int  #: which of the processes of that role
    command: Sequence[str]  #: argv, the interpreter first
    environ: Mapping[str, str]  #: the whole environment
    log: Path  #: file that stdout and stderr are appended to
    status: Path  #: has the address of its health page, as files beside it do for services that it hosts; Path(): none
    keep_open: tuple[int, ...] = ()  #: file descriptors that it inherits
    log_bytes: int = 0  #: of the log, at which it begins anew, and its end is kept in another file; 0: any
    core: int | None = None  #: that it stays on by itself
    restart: Restart = Restart.NEVER
    start: int | None = None  #: agent steps after which it begins (`--start`); None: it does not take that flag

    def argv(self, restarts: int = 0) -> Sequence[str]:
        """The command after so many restarts. Each has another `--start`, and so other seeds for environments."""
        if self.start is None or not restarts:
            return self.command
        return *self.command, "--start", str(self.start + restarts)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.role} {self.index}"

    @property
    def statuses(self) -> dict[str, Path]:
        """The files with the address of the health page of each of its services, by role."""
        return status.files_of(self.role, self.status)


class Plan:
    """The processes of a run.

    Actor i uses env-server i and broker i, modulo how many there are.

    Args:
      config: settings of the run, as written to its folder (`preparation.prepare_run`).
      sockets: private folder with a short path, for the unix sockets of the planes.
      environ: the environment of this process.
      supervisor: id of the process with which they end, which ends all of them when the learner ends; None: each ends
        by itself when the run is over.
      keep_open: file descriptors that they inherit.
      own_broker: no program uses the broker of placement `serve`, so that it takes no port.
      flags: of every process, above those of the plan.

    Attributes:
      processes: in the order in which they are started, the learner first.
      placement: how its services are placed, and their threads.
      counts: how many processes of each role `add_all` adds.
      restarts: how many times processes are started again, of all together.
    """

    def __init__(
        self,
        config: RunConfig,
        sockets: Path,
        environ: Mapping[str, str],
        *,
        supervisor: int | None = None,
        keep_open: tuple[int, ...] = (),
        own_broker: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self.config, self.placement = config, placement_of(config)
        wanted = [each.name for each in RECORDS.values() if each.wanted and getattr(config, each.wanted)]
        here = config.local.placement == "serial"  # asked for: in this process, which has no others beside it
        self.counts = self.placement.processes | dict.fromkeys(() if here else wanted, 1)
        self.processes: list[ProcessSpec] = []
        given = 0 if config.local.restarts is None and config.deterministic else config.local.restarts
        self.restarts = RESTARTS if given is None else given
        self._given = given  # a service of a deterministic run that begins anew would play other episodes
        self._sockets, self._keep_open, self._own_broker = sockets, keep_open, own_broker
        self._folder = config.folder.absolute()  # in a serial run an environment may change this process's folder
        self._environ, self._start = child_environ(environ), resume_step(config.folder)
        self._flags = [
            *("--learner.when_done", "evaluated" if supervisor is None else "exit"),
            *(() if supervisor is None else ("--supervisor-pid", str(supervisor))),
            *("--start", str(self._start)),
            *self.placement.flags(),
            *flags,
        ]

    def add(self, role: str, *flags: str) -> ProcessSpec:
        """Add one more process; `flags` override those of the run."""
        index = sum(process.role == role for process in self.processes)
        place = self._folder / run_files.SERVICES / f"{role}-{index}.json"
        first = self.config.health.port  # the learner has it, and the others those after it; 0: any free one
        port = first + sum(len(process.statuses) for process in self.processes) if first else 0
        core = self.placement.core_of(index) if role == "worker" else None
        command = service_command(
            role,
            *settings_flags(self.config, self._folder / run_files.CONFIG),
            *("--status-file", str(place), "--health.port", str(port), "--index", str(index)),
            *self._endpoints(index),
            *self._flags,
            *(() if core is None else ("--core", str(core))),
            *flags,
        )
        log = self._folder / run_files.LOGS / f"{role}-{index}.log"
        more = self._keep_open, self.config.local.log_bytes, core, self.restart_of(role), self._start
        spec = ProcessSpec(role, index, command, self._environ, log, place, *more)
        self.processes.append(spec)
        return spec

    def add_all(self) -> list[ProcessSpec]:
        """Add as many processes of each role as the run has."""
        return [self.add(role) for role, count in self.counts.items() for _ in range(count)]

    def restart_of(self, role: str) -> Restart:
        """When a process of this role is started again."""
        return restart_of(role, self._given)

    def _endpoints(self, index: int) -> Iterator[str]:
        """Flags by which this machine's services find each other; those that serve others use the settings."""
        if self.placement.name != "serve":
            for role in SERVERS:
                count = 1 if role == LEARNER else self.counts.get(role, 0)
                yield from (f"--{role}.endpoint", socket_endpoint(self._sockets, role, index % max(1, count)))
            ranks = self.config.learner.ranks
            others = (socket_endpoint(self._sockets, LEARNER, rank) for rank in range(1, ranks))
            yield from ("--learner.rank_endpoints", ",".join(others))
            yield from ("--learner.meeting", f"file://{self._sockets}/ranks") if ranks > 1 else ()
        elif self._own_broker:
            yield from ("--broker.endpoint", socket_endpoint(self._sockets, "broker", index))


def restart_of(role: str, restarts: int | None) -> Restart:
    """When a process of a role is started again.

    Args:
      role: what it is. A run goes on without some, and a learner would lose updates.
      restarts: `local.restarts`; None: not given.
    """
    if restarts == 0 or (role in RECORDS and RECORDS[role].wanted):
        return Restart.NEVER
    if restarts is None:
        return Restart.NEVER if LEARNER in SERVICES_BY_PROCESS.get(role, ()) else Restart.KILLED
    return Restart.ALWAYS


def files_needed(config: RunConfig) -> int:
    """How many files one service of a run on this machine may have open, connections included."""
    placement = placement_of(config)
    actors = placement.all_actors
    servers = sum(placement.processes.get(role, 0) for role in ("envserver", "worker")) or 1
    groups = placement.env_groups * -(-actors // servers)  #: of one env-server
    processes = min(config.actor.envs_per_group, placement.threads["envserver.workers"])  #: of one group
    return MIN_FILES + 2 * actors + max(servers, 3 * groups * processes)


def service_command(role: str, *flags: str) -> list[str]:
    """argv that runs a service with this interpreter.

    -P: the user's own folder must not come first in its imports.
    """
    return [sys.executable, "-P", "-m", f"zerobeast.services.{role}", *flags]


def settings_flags(config: RunConfig, file: Path) -> Iterator[str]:
    """Flags that give a service the settings in a file, and confirm what that file may not decide alone."""
    yield from ("--config", str(file), *confirmation(decisive_values(config)))


def socket_endpoint(folder: Path, role: str, index: int = 0) -> str:
    """The endpoint of a service on a unix socket in a folder."""
    return f"ipc://{folder}/{role}-{index}"


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service, as `helper_environ` without secrets, which only trackers and ssh need."""
    return drop_secrets(helper_environ(environ))


def helper_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of ours that makes no environments.

    Settings from the launcher's environment are already in config.yaml, below the launcher's own flags; passed on,
    they would win over it.
    """
    ours = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    return ours | NO_PLUGINS | {"PYTHONUNBUFFERED": "1"}
