"""The processes of a run as children of this one, and on other machines.

`beast train` hands all of them to the supervisor; `zerobeast_tools` starts, stops and kills them one by one.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.health import status
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.child import Child
from zerobeast.launcher.hosts import Host, host_command
from zerobeast.launcher.supervisor import Supervisor
from zerobeast.plan.processes import Plan, ProcessSpec, helper_environ


class Fleet:
    """Child processes, none of which is started here.

    Args:
      config, sockets, environ, keep_open, own_broker, flags: as for `Plan`.
    """

    def __init__(
        self,
        config: RunConfig,
        sockets: Path,
        environ: Mapping[str, str],
        *,
        keep_open: tuple[int, ...] = (),
        own_broker: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.plan = Plan(
            config,
            sockets,
            environ,
            supervisor=os.getpid(),
            keep_open=keep_open,
            own_broker=own_broker,
            flags=flags,
        )
        self.children: list[Child] = []
        self._keep_open, self._helper_environ = keep_open, helper_environ(environ)
        self._folder = config.folder.absolute()  # in a serial run an environment may change this process's folder

    def add(self, role: str, *flags: str) -> Child:
        """Add one more service, which is not started yet; `flags` override those of the run."""
        self.children.append(Child(self.plan.add(role, *flags)))
        return self.children[-1]

    def add_all(self) -> list[Child]:
        """Add as many services of each role as configured, none of them started yet."""
        for role, count in self.plan.counts.items():
            for _ in range(count):
                self.add(role)
        return self.children

    @property
    def refused(self) -> bool:
        """Whether one of them ended because its input was bad."""
        return any(child.code == ConfigError.exit_code for child in self.children)

    def supervisor(self, watch: Callable[[bool], None] = lambda _stopping: None) -> Supervisor:
        """What runs these processes; `watch` as for `Supervisor`."""
        queue = EvaluationQueue(self._folder, self.config.envserver.step_timeout_s) if self.config.evaluates else None
        return Supervisor(self.children, watch, queue, self.plan.restarts)

    def add_hosts(self, hosts: Sequence[Host]) -> None:
        """Add workers on other machines, which the supervisor starts and ends with the rest."""
        first = 0
        for index, host in enumerate(hosts):
            log, place = (self._folder / part / f"host-{index}" for part in (run_files.LOGS, run_files.SERVICES))
            status.write_status(place.with_suffix(".json"), host=f"ssh {host.address}", health="")
            argv, restart = host_command(host, first, self.config), self.plan.restart_of("worker")
            more = self._keep_open, self.config.local.log_bytes, None, restart
            spec = ProcessSpec("worker", index, argv, self._helper_environ, log.with_suffix(".log"), Path(), *more)
            self.children.append(Child(spec))
            first += host.workers
