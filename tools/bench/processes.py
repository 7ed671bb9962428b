"""The other processes of a benchmark: spawned, spoken to over a pipe, and never left behind.

    with Processes() as processes:
        client = processes.start(ask, endpoint)           # runs ask(pipe, endpoint) in a process of its own
        processes.until_heard([client], meanwhile=turn)   # turn() over and over until it has said something
        ...                                           # every pipe is closed in the end, which ends its process

`serve` runs a service in such a process. A loop that is no service asks a `Leash` when to end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

from zerobeast.common.errors import BeastError
from zerobeast.common.runtime.memory import keep_freed_memory
from zerobeast.common.service.base import Service
from zerobeast.common.wire.codec import pack, unpack

START_LIMIT_S = 120.0  #: for a process to import what it needs and to say its first word
EXIT_S = 5.0  #: for a process whose pipe has ended to end too
LEASH_PERIOD_S = 0.1


class Process:
    """One process.

    Args:
      target: runs in it, with its end of the pipe as first argument; a function of a module.
      args: the further arguments.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = f"{target.__module__}.{target.__name__}"
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(target, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def tell(self, value: Any) -> None:
        """Send plain values."""
        with contextlib.suppress(OSError):  # it has ended: `hear` says so
            self.pipe.send_bytes(pack(value))

    def hear(self) -> Any:
        """What it sends next.

        Raises:
          BeastError: it has ended, or says nothing for too long.
        """
        if not self.pipe.poll(START_LIMIT_S):
            raise self.silent()
        try:
            return unpack(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            self._process.join(EXIT_S)
            raise BeastError(f"the process of {self._name} ended with code {self._process.exitcode}") from error

    def silent(self) -> BeastError:
        """The sentence for one that should have said something."""
        return BeastError(f"the process of {self._name} has said nothing for {START_LIMIT_S:g} s")

    def end(self) -> None:
        """Wait until the process has ended; one that does not is killed."""
        self._process.join(EXIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


class Processes:
    """All processes of one measurement."""

    def __init__(self) -> None:
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._processes:
            process.pipe.close()
        for process in self._processes:
            process.end()

    def start(self, target: Callable[..., None], *args: Any) -> Process:
        """Start one more."""
        self._processes.append(Process(target, *args))
        return self._processes[-1]

    def until_heard(self, speakers: Sequence[Process], meanwhile: Callable[[], Any]) -> None:
        """Call `meanwhile` over and over until each of these has said its first word.

        Raises:
          BeastError: a process has ended, or says nothing for too long.
        """
        deadline = time.monotonic() + START_LIMIT_S
        quiet = [process for process in self._processes if process not in speakers]
        while waiting := [process for process in speakers if not process.pipe.poll()]:
            if time.monotonic() > deadline:
                raise waiting[0].silent()
            for process in quiet:
                if process.pipe.poll():
                    process.hear()  # it was not asked anything, so this is its end
            meanwhile()
        for process in speakers:
            process.hear()


class Leash:
    """Says to a loop that its benchmark has let go of it. Looks ten times a second, however often it is asked."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._look_at = 0.0

    def gone(self, now: float) -> bool:
        """Whether to end; `now` is a monotonic time in seconds."""
        if now < self._look_at:
            return False
        self._look_at = now + LEASH_PERIOD_S
        return self._pipe.poll()


def say(pipe: Connection, value: Any) -> None:
    """Send plain values to the benchmark."""
    with contextlib.suppress(OSError):  # it has ended
        pipe.send_bytes(pack(value))


def serve(pipe: Connection, service: Service, figures: Callable[[], list[float]] = list) -> None:
    """Run a service in this thread until the pipe ends; whatever comes over it is answered with `figures()`."""

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                pipe.recv_bytes()
                say(pipe, figures())
        service.stop()

    threading.Thread(target=listen, daemon=True).start()
    service.run()


def end_with_parent() -> None:
    """Make this process, of a pool, end as soon as the one that made it does: a pool whose owner is killed stays."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process that was not started by another has no parent to end with"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run(target: Callable[..., None], pipe: Connection, *args: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark, and that the pipe
    keep_freed_memory()  # as every service does
    target(pipe, *args)
