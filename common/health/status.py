"""The status file of a service: where its health page is while it runs, and then how its process has ended.

    {"role": "actor", "index": 0, "pid": 4711, "host": "node1", "health": "127.0.0.1:8080"}
    {"role": "actor", "pid": 4711, "host": "node1", "state": "failed", "sentence": "the broker is silent", "code": 75}

A process writes both. If it could not say how it ended, as when it is killed, whoever has started it does. Containers
have no such file, so the last line of a log has the same record, for people and for `is_finished`.
"""

import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from zerobeast.common.errors import BeastError
from zerobeast.common.files.atomic import explain_os_errors, write_atomically
from zerobeast.common.files.regular_files import read_small_json
from zerobeast.common.process.roles import SERVICES_BY_PROCESS

#: nothing is left to do; it was asked to; for a reason that its sentence gives; by a bug, ours or not; by a signal
State = Literal["finished", "stopped", "failed", "crashed", "killed"]
STATES = get_args(State)
NAMES = re.compile(
    rf"({'|'.join((*SERVICES_BY_PROCESS, 'host'))})-\d+\.json"
)  #: of files, also of what looks after a host
MAX_PID = 2**22  #: of Linux


class ExitRecord(NamedTuple):
    """How a process has ended."""

    state: State
    sentence: str = ""  #: a line for each reason, if there are several
    code: int = 0  #: exit code; negative: number of the signal

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"ended as {self.state}", self.sentence]))


class Status(NamedTuple):
    """What a status file says. It may be of somebody else."""

    pid: int  #: 0 if it has none
    host: str  #: this one if it has none
    health: str
    end: ExitRecord | None


def files_of(process: str, status: Path) -> dict[str, Path]:
    """The status file of each service of a process, by role; none if the path is empty.

    Several services have a file each: worker-0.json stands for envserver-0.json, actor-0.json and broker-0.json.
    """
    hosted = SERVICES_BY_PROCESS.get(process, (process,)) if status.name else ()
    number = status.stem.removeprefix(process)
    return {role: status if hosted == (process,) else status.with_stem(role + number) for role in hosted}


def clear_statuses(folder: Path) -> None:
    """Remove the files of an earlier start. Raises ConfigError if one cannot be removed."""
    with explain_os_errors(f"{folder}: an earlier status file cannot be removed"):
        for file in folder.glob("*.json"):
            if NAMES.fullmatch(file.name):
                file.unlink()


def announce(path: Path, role: str, index: int | None, health: str) -> None:
    """Write where the health page of a service of this process is, to a file that is replaced atomically.

    Raises:
      DiskError: the disk is full; the service works without the file.
      ConfigError: it can never be written.
    """
    with explain_os_errors(f"status file {path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_status(path, role=role, index=index, pid=os.getpid(), host=socket.gethostname(), health=health)


def record_end(files: Mapping[str, Path], pid: int, end: ExitRecord) -> None:
    """Write how a process has ended to the files of its services, if their folder is still there and has room.

    A file of another process that has not ended stays as it is.
    """
    here = socket.gethostname()
    for role, path in files.items():
        with suppress(BeastError), explain_os_errors(f"status file {path}"):
            there = read_status(path)
            if path.parent.exists() and (there.end or not there.pid or (there.pid, there.host) == (pid, here)):
                write_status(path, role=role, pid=pid, host=here, **end._asdict())


def write_status(path: Path, **facts: Any) -> None:
    """Write a status file with these facts. Raises ConfigError if that is not possible."""
    write_atomically(path, json.dumps(facts), durable=False)


def read_status(path: Path) -> Status:
    """What a status file says; nothing if there is none, or it is half written or of another kind."""
    found = read_small_json(path)
    ended = found.get("state") in STATES and type(found.get("code")) is int
    end = ExitRecord(found["state"], str(found.get("sentence", "")), found["code"]) if ended else None
    pid = found.get("pid")
    known = pid if type(pid) is int and 0 < pid <= MAX_PID else 0
    return Status(known, str(found.get("host") or socket.gethostname()), str(found.get("health", "")), end)


def end_of(files: Mapping[str, Path], pid: int) -> ExitRecord | None:
    """How the process of this number has ended by its own account; None if its files do not say so."""
    found = (read_status(path) for path in files.values())
    return next((status.end for status in found if status.end and status.pid == pid), None)


def is_finished(line: str) -> bool:
    """Whether the last line in the log of a process is that of one with nothing left to do."""
    *_, sentence = line.split(" I ", 1)  # behind the time, the process and the level
    return f"{sentence}:".startswith(f"{ExitRecord('finished')}:")
