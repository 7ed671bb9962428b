"""Which processes a run consists of on this machine: their command lines, environments and stages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerobeast.common.config.layers import PREFIX
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.runtime import run_files
from zerobeast.common.runtime.descriptors import LEAST
from zerobeast.launcher.child import Child, ChildSpec
from zerobeast.launcher.run_folder import start
from zerobeast.launcher.supervisor import Stage
from zerobeast.launcher.threads import thread_flags, threads_of

#: how long the next role waits for one to stop; the learner is asked after at most 2 s
HEAD_START_S = {"actor": 1.0, "envserver": 0.5, "broker": 0.5, "learner": 0.0}


def stages(config: RunConfig, sockets: Path, lock: int, environ: Mapping[str, str]) -> list[Stage]:
    """The children of a run, in the order of stopping.

    Args:
      config: as written to the run's folder.
      sockets: private folder with a short path, for the ipc endpoints.
      lock: descriptor of the run's lock, which the children keep open.
      environ: of the launcher.
    """
    counts = {"actor": config.local.actors, "envserver": config.local.env_servers, "broker": 1, "learner": 1}
    flags = ["--start", str(start(config.folder)), *thread_flags(config)]
    shared = child_environ(environ)
    return [
        Stage(
            [Child(_spec(config, role, index, sockets, lock, flags, shared)) for index in range(count)],
            HEAD_START_S[role],
        )
        for role, count in counts.items()
    ]


def files_needed(config: RunConfig) -> int:
    """Files that any one service of a run on this machine may have open, connections among them."""
    groups = config.actor.env_groups * -(-config.local.actors // config.local.env_servers)  #: of one env-server
    processes = min(config.actor.envs_per_group, threads_of(config)["envserver.workers"])  #: of one group
    return LEAST + 2 * config.local.actors + max(config.local.env_servers, 3 * groups * processes)


def _spec(
    config: RunConfig,
    role: str,
    index: int,
    sockets: Path,
    lock: int,
    flags: list[str],
    environ: dict[str, str],
) -> ChildSpec:
    status = config.folder / run_files.SERVICES / f"{role}-{index}.json"
    command = service_command(
        role,
        *child_flags(config.folder / run_files.CONFIG, status, health_port=_health_port(config, role, index)),
        *("--index", str(index)),
        *endpoint_flags(sockets, index % config.local.env_servers),
        *flags,
    )
    log = config.folder / run_files.LOGS / f"{role}-{index}.log"
    return ChildSpec(role, index, command, environ, log, status, keep_open=(lock,))


def _health_port(config: RunConfig, role: str, index: int) -> int:
    """A free port each or, where one is given, that for the learner and those behind it for the others."""
    first = {"learner": 0, "broker": 1, "envserver": 2, "actor": 2 + config.local.env_servers}
    return config.health.port + first[role] + index if config.health.port else 0


def service_command(role: str, *flags: str) -> list[str]:
    """argv that runs a service with this interpreter; -P: the user's own folder must not come first in its imports."""
    return [sys.executable, "-P", "-m", f"zerobeast.services.{role}", *flags]


def child_flags(config: Path, status: Path, *, health_port: int = 0) -> Iterator[str]:
    """Flags that make a service a child of this process, which says in `status` where its health page is."""
    yield from ("--config", str(config), "--supervisor-pid", str(os.getpid()))
    yield from ("--status-file", str(status), "--health.port", str(health_port))
    yield from ("--learner.when_done", "exit")  # a run from a cluster has `stay`; here its exit is the end of the run


def endpoint_flags(sockets: Path, env_server: int) -> Iterator[str]:
    """Flags that put every plane on a unix socket, with one of the env-servers."""
    yield from ("--envserver.endpoint", f"ipc://{sockets}/e{env_server}")
    yield from ("--broker.endpoint", f"ipc://{sockets}/b")
    yield from ("--learner.endpoint", f"ipc://{sockets}/l")


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service.

    Settings from the launcher's environment are already in config.yaml, below the launcher's own flags; passed on,
    they would win over it.
    """
    ours = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    # The user's folder, so that their environments can be imported; last, so that it hides nothing that is installed.
    path = os.pathsep.join(filter(None, [environ.get("PYTHONPATH", ""), str(Path.cwd())]))
    return ours | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
