"""The processes of a run that another process has started, found by what they have left in its folder."""

import socket
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from zerobeast.common.files import run_files
from zerobeast.common.health import status
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.common.process.roles import PROCESSES, SERVICES_BY_PROCESS
from zerobeast.plan.processes import ProcessSpec

REMOTE_PID = -1  #: process id of a process on another machine
LEARNER_STATUS = "learner-0.json"


@dataclass(frozen=True)
class ForeignProcess:
    """A process that somebody else has started; see `launcher.child.Child`."""

    spec: ProcessSpec
    pid: int
    remote: bool = False  #: as for `announced`

    @property
    def code(self) -> int | None:
        """Its exit code once it has ended; 0 if nobody could say which."""
        if self.pid <= 0:
            return None
        if end := status.end_of(self.spec.statuses, self.pid):  # another process may have the number by now
            return end.code
        return None if psutil.pid_exists(self.pid) else 0


_Process = tuple[str, int, str]  #: host, process id, index


def find_processes(folder: Path, *, remote: bool = False) -> list[ForeignProcess]:
    """Every process of a run of which a service has announced itself, the learner first; `remote` as there."""
    roles: defaultdict[_Process, set[str]] = defaultdict(set)
    for role, process in _announcements(folder):
        roles[process].add(role)
    found = []
    for (host, pid, number), those in roles.items():
        kinds = [kind for kind, hosted in SERVICES_BY_PROCESS.items() if set(hosted) == those] or sorted(those)
        for kind in kinds:  # of a process that has not announced all its services yet, each counts alone
            name = f"{kind}-{number}"
            place, log = folder / run_files.SERVICES / f"{name}.json", folder / run_files.LOGS / f"{name}.log"
            spec = ProcessSpec(kind, int(number), (), {}, log, place)
            found.append(ForeignProcess(spec, pid if host == socket.gethostname() else REMOTE_PID, remote))
    return sorted(found, key=lambda each: (PROCESSES.index(each.spec.role), each.spec.index))


def is_running(folder: Path, *, remote: bool = False) -> bool:
    """Whether a launcher or one of its services holds the lock of a run's folder, or a learner answers."""
    return run_files.is_held(folder / run_files.LAUNCHER_LOCK) or bool(
        fetch_announced_page(folder / run_files.SERVICES / LEARNER_STATUS, remote=remote)
    )


def _announcements(folder: Path) -> Iterator[tuple[str, _Process]]:
    for file in (folder / run_files.SERVICES).glob("*.json"):
        role, _, number = file.stem.rpartition("-")
        pid, host, *_ = status.read_status(file)
        if role in SERVICES_BY_PROCESS and number.isdecimal() and pid:
            yield role, (host, pid, number)
