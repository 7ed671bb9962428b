"""Marks of processes whose descendants have to end with them: an environment may leave processes behind, such as a
simulator in a session of its own.

Linux shows their marks in /proc; on other systems none is found, nor is one that was started without the variables of
its parent.
"""

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator, Set
from pathlib import Path

MARK = "ZEROBEAST_WORKER"  #: environment variable, which every process that a marked one starts inherits


@contextlib.contextmanager
def mark_children() -> Iterator[str]:
    """Give processes that are started meanwhile a mark that no other has, and yield it."""
    os.environ[MARK] = mark = secrets.token_hex(8)
    try:
        yield mark
    finally:
        del os.environ[MARK]


def end_marked(marks: Set[str], spare: int = 0) -> int:
    """Kill every process that carries one of the marks, but not `spare`; returns how many there were."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    killed: set[int] = set()
    while found := {pid for pid in _carriers(wanted) if pid != spare} - killed:  # they may start others until they die
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    return len(killed)


def _carriers(wanted: Set[bytes]) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if not wanted.isdisjoint((folder / "environ").read_bytes().split(b"\0")):
                yield int(folder.name)
