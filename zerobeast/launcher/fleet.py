"""The services of a run as processes of this machine: how each is started, and how they are ended.

`beast train` hands all of them to the supervisor; `zerobeast_tools` starts, stops and kills them one by one.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from zerobeast.common.config.layers import PREFIX
from zerobeast.common.config.trust import confirmation, decisive
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.health import status
from zerobeast.common.process.environ import NO_PLUGINS, for_environments
from zerobeast.common.process.roles import RECORDS
from zerobeast.common.process.usage import LEAST
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.child import Child, ChildSpec
from zerobeast.launcher.hosts import Host, command
from zerobeast.launcher.placement import placement_of
from zerobeast.launcher.run_folder import start
from zerobeast.launcher.supervisor import Supervisor

USED = ("envserver", "broker")  #: roles that an actor uses, one of each


class Fleet:
    """Child processes, none of which is started here.

    Actor i uses env-server i and broker i, modulo how many there are.

    Args:
      config: settings of the run, as written to its folder.
      sockets: private folder with a short path, for the unix sockets of the planes.
      environ: the environment of this process.
      keep_open: file descriptors that the services inherit.
      own_broker: no program uses the broker of placement `serve`, so that it takes no port.
    """

    def __init__(
        self,
        config: RunConfig,
        sockets: Path,
        environ: Mapping[str, str],
        *,
        keep_open: tuple[int, ...] = (),
        own_broker: bool = False,
    ) -> None:
        self.config, self.placement = config, placement_of(config)
        self.children: list[Child] = []
        self._counts = dict(self.placement.processes)
        self._sockets, self._keep_open, self._own_broker = sockets, keep_open, own_broker
        self._log_bytes = config.local.log_mb << 20
        status.clear(config.folder / run_files.SERVICES)
        self._folder = config.folder.absolute()  # in a serial run an environment may change this process's folder
        self._environ, self._helper_environ = child_environ(environ), helper_environ(environ)
        self._flags = ["--start", str(start(config.folder)), *self.placement.flags()]

    def add(self, role: str, *flags: str) -> Child:
        """Add one more service, which is not started yet; `flags` override those of the run."""
        index = sum(child.spec.role == role for child in self.children)
        place = self._folder / run_files.SERVICES / f"{role}-{index}.json"
        first = self.config.health.port  # the learner has it, and the others those after it; 0: any free one
        port = first + sum(len(child.spec.statuses) for child in self.children) if first else 0
        command = service_command(
            role,
            *child_flags(self.config, self._folder / run_files.CONFIG, place, health_port=port),
            *("--index", str(index)),
            *self._endpoints(index),
            *self._flags,
            *(self.placement.core_of(index) if role == "worker" else ()),
            *flags,
        )
        log = self._folder / run_files.LOGS / f"{role}-{index}.log"
        spec = ChildSpec(role, index, command, self._environ, log, place, self._keep_open, self._log_bytes)
        child = Child(spec)
        self.children.append(child)
        return child

    def add_all(self) -> list[Child]:
        """Add as many services of each role as configured, none of them started yet."""
        for role, count in self._counts.items():
            for _ in range(count):
                self.add(role)
        for record in RECORDS.values():
            if record.wanted and getattr(self.config, record.wanted) and self.config.local.placement != "serial":
                self.add(record.name)
        return self.children

    @property
    def refused(self) -> bool:
        """Whether one of them ended because its input was bad."""
        return any(child.code == ConfigError.exit_code for child in self.children)

    def supervisor(self, watch: Callable[[bool], None] = lambda _stopping: None) -> Supervisor:
        """What runs these processes; `watch` as for `Supervisor`."""
        again = self.config.local.restarts
        if again is None and self.config.deterministic:
            again = 0  # a service that begins anew plays other episodes than the one before would have
        queue = EvaluationQueue(self._folder, self.config.envserver.step_timeout_s) if self.config.evaluates else None
        return Supervisor(self.children, watch, queue, again)

    def add_hosts(self, hosts: Sequence[Host]) -> None:
        """Add workers on other machines, which the supervisor starts and ends with the rest."""
        first = 0
        for index, host in enumerate(hosts):
            log, place = (self._folder / part / f"host-{index}" for part in (run_files.LOGS, run_files.SERVICES))
            status.write(place.with_suffix(".json"), host=f"ssh {host.address}", health="")
            argv = command(host, first, self.config)
            more = log.with_suffix(".log"), Path(), self._keep_open, self._log_bytes
            self.children.append(Child(ChildSpec("worker", index, argv, self._helper_environ, *more)))
            first += host.workers

    def _endpoints(self, index: int) -> Iterator[str]:
        """Flags by which this machine's services find each other; those that serve others use the settings."""
        if self.placement.name != "serve":
            yield from endpoint_flags(self._sockets, *(index % max(1, self._counts.get(each, 0)) for each in USED))
            yield from rank_flags(self._sockets, self.config.learner.ranks)
        elif self._own_broker:
            yield from ("--broker.endpoint", f"ipc://{self._sockets}/b{index}")


def files_needed(config: RunConfig) -> int:
    """How many files one service of a run on this machine may have open, connections included."""
    placement = placement_of(config)
    actors = placement.all_actors
    servers = sum(placement.processes.get(role, 0) for role in ("envserver", "worker")) or 1
    groups = placement.env_groups * -(-actors // servers)  #: of one env-server
    processes = min(config.actor.envs_per_group, placement.threads["envserver.workers"])  #: of one group
    return LEAST + 2 * actors + max(servers, 3 * groups * processes)


def service_command(role: str, *flags: str) -> list[str]:
    """argv that runs a service with this interpreter.

    -P: the user's own folder must not come first in its imports.
    """
    return [sys.executable, "-P", "-m", f"zerobeast.services.{role}", *flags]


def child_flags(config: RunConfig, file: Path, status: Path, *, health_port: int = 0) -> Iterator[str]:
    """Flags that make a service a child of this process, with the settings of `file`; its page is named in `status`."""
    yield from ("--config", str(file), *confirmation(decisive(config)), "--supervisor-pid", str(os.getpid()))
    yield from ("--status-file", str(status), "--health.port", str(health_port))
    yield from ("--learner.when_done", "exit")  # a run from a cluster has `stay`; here the learner's exit ends the run


def endpoint_flags(sockets: Path, env_server: int = 0, broker: int = 0) -> Iterator[str]:
    """Flags that put every plane on a unix socket, with one of the env-servers and one of the brokers."""
    yield from ("--envserver.endpoint", f"ipc://{sockets}/e{env_server}")
    yield from ("--broker.endpoint", f"ipc://{sockets}/b{broker}")
    yield from ("--learner.endpoint", f"ipc://{sockets}/l")


def rank_flags(sockets: Path, ranks: int) -> Iterator[str]:
    """Flags by which the ranks of a learner are found, and find each other."""
    yield from ("--learner.rank_endpoints", ",".join(f"ipc://{sockets}/l{rank}" for rank in range(1, ranks)))
    if ranks > 1:
        yield from ("--learner.meeting", f"file://{sockets}/ranks")


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service, as `helper_environ` without secrets, which only trackers and ssh need."""
    return for_environments(helper_environ(environ))


def helper_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of ours that makes no environments.

    Settings from the launcher's environment are already in config.yaml, below the launcher's own flags; passed on,
    they would win over it.
    """
    ours = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    return ours | NO_PLUGINS | {"PYTHONUNBUFFERED": "1"}
