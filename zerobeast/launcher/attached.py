"""The processes of a run that another process has started, found by what they have left in its folder."""

import socket
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from zerobeast.common.files import run_files
from zerobeast.common.files.opening import small_json
from zerobeast.common.health.pages import announced_page
from zerobeast.common.process.roles import HOSTED, PROCESSES
from zerobeast.launcher.child import ChildSpec

ELSEWHERE = -1  #: process id of a process on another machine
MAX_PID = 2**22  #: of Linux
FIRST = "learner-0.json"


@dataclass(frozen=True)
class Attached:
    """A process that somebody else has started; see `launcher.child.Child`."""

    spec: ChildSpec
    pid: int
    remote: bool = False  #: as for `announced`

    @property
    def code(self) -> int | None:
        """0 once it has ended, however that was: only its parent gets the exit code."""
        return 0 if self.pid > 0 and not psutil.pid_exists(self.pid) else None


_Process = tuple[str, int, str]  #: host, process id, index


def attached(folder: Path, *, remote: bool = False) -> list[Attached]:
    """Every process of a run of which a service has announced itself, the learner first; `remote`: see `Attached`."""
    roles: defaultdict[_Process, set[str]] = defaultdict(set)
    for role, process in _announcements(folder):
        roles[process].add(role)
    found = []
    for (host, pid, number), those in roles.items():
        kinds = [kind for kind, hosted in HOSTED.items() if set(hosted) == those] or sorted(those)
        for kind in kinds:  # of a process that has not announced all its services yet, each counts alone
            name = f"{kind}-{number}"
            status, log = folder / run_files.SERVICES / f"{name}.json", folder / run_files.LOGS / f"{name}.log"
            spec = ChildSpec(kind, int(number), (), {}, log, status)
            found.append(Attached(spec, pid if host == socket.gethostname() else ELSEWHERE, remote))
    order = [*PROCESSES, *HOSTED]
    return sorted(found, key=lambda each: (order.index(each.spec.role), each.spec.index))


def runs(folder: Path, *, remote: bool = False) -> bool:
    """Whether a launcher or one of its services holds the lock of a run's folder, or a learner answers."""
    return run_files.is_held(folder / run_files.LAUNCHER_LOCK) or bool(
        announced_page(folder / run_files.SERVICES / FIRST, remote=remote)
    )


def _announcements(folder: Path) -> Iterator[tuple[str, _Process]]:
    for file in (folder / run_files.SERVICES).glob("*.json"):
        role, _, number = file.stem.rpartition("-")
        status = small_json(file)  # empty if it is half written, or no such file
        pid = status.get("pid")
        if role in HOSTED and number.isdecimal() and isinstance(pid, int) and 0 < pid <= MAX_PID:
            yield role, (str(status.get("host") or socket.gethostname()), pid, number)
