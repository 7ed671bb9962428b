"""The other processes of a benchmark: spawned, connected by a pipe, and never left behind.

    with Processes() as processes:
        client = processes.start(ask, endpoint)           # runs ask(pipe, endpoint) in a process of its own
        processes.until_heard([client], meanwhile=turn)   # turn() over and over until it has sent something
        ...                                               # all are killed in the end

If the benchmark itself is killed, they end as well: see `set_up_process`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from zerobeast.common.errors import BeastError
from zerobeast.common.process.usage import keep_freed_memory
from zerobeast.common.transport import Context
from zerobeast.launcher.private_folder import private_folder

START_LIMIT_S = 120.0  #: for a process to import what it needs and to send its first message


@contextlib.contextmanager
def plane_processes() -> Iterator[tuple[Path, Context, Processes]]:
    """What the benchmark of a plane needs: a folder for sockets, the context of this process, and other processes."""
    keep_freed_memory()
    with private_folder() as folder, Context() as context, Processes() as processes:
        yield folder, context, processes


class Process:
    """One process.

    Args:
      target: module-level function that runs in it, with its end of the pipe as first argument.
      args: further arguments.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = f"{target.__module__}.{target.__name__}"
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run_target, args=(target, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe closes when the process ends

    def hear(self, limit_s: float = START_LIMIT_S) -> Any:
        """Receive its next message.

        Raises:
          BeastError: it has ended, or sends nothing for too long.
        """
        if not self.pipe.poll(limit_s):
            raise BeastError(f"the process of {self._name} has sent nothing for {max(limit_s, START_LIMIT_S):g} s")
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise BeastError(f"the process of {self._name} ended with code {self._process.exitcode}") from error

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


class Processes:
    """All processes of one measurement, in the order of starting."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.processes:
            process.end()

    def start(self, target: Callable[..., None], *args: Any) -> Process:
        """Start one more."""
        self.processes.append(Process(target, *args))
        return self.processes[-1]

    def until_heard(self, speakers: Sequence[Process], meanwhile: Callable[[], Any]) -> None:
        """Call `meanwhile` over and over until each speaker has sent its first message.

        Raises:
          BeastError: a process has ended, or sends nothing for too long.
        """
        deadline = time.monotonic() + START_LIMIT_S
        while not all(process.pipe.poll() for process in speakers) and time.monotonic() < deadline:
            for process in self.processes:
                if process not in speakers and process.pipe.poll():
                    process.hear()  # nothing was asked of it, so it must have ended
            meanwhile()
        for process in speakers:
            process.hear(0.0)


def set_up_process() -> None:
    """Set up a process of a benchmark: it keeps freed memory, as services do, and does not outlive its parent."""
    keep_freed_memory()
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process that was not started by another has no parent to end with"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run_target(target: Callable[..., None], pipe: Connection, *args: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark, which ends its processes
    set_up_process()
    target(pipe, *args)
