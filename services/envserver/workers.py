"""Pure-Python environments, stepped by worker processes so that a slow or crashing one holds up nobody else.

The environments of a session are dealt to its workers in slices; each worker fills its slice of the rows. The server
never waits for a worker: `files` says when one has answered. Processes are spawned, never forked, and end with
their pipe. A worker that dies takes its environments with it: they are made anew, their next rows are first ones.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import select
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.codec import unpack
from common.config.tree import EnvConfig
from common.errors import EnvError
from common.specs import EnvSpec
from services.envserver.episodes import EpisodeStatistics
from services.envserver.vector import VectorEnv, contained, rows_for
from services.envserver.worker import RESET, STEP, serve

log = logging.getLogger(__name__)

MAX_DEATHS = 3  #: of one worker without a step in between, before the session is given up
MAX_LOGGED = 10  #: tracebacks of one session; the rest is only counted
EXIT_S = 1.0  #: for a process whose pipe has ended to end too


@dataclass
class _Worker:
    """One process and its slice of the environments."""

    part: slice
    process: Any = None
    pipe: Connection | None = None  #: None while there is no process
    awaits: Literal["spec", "rows", ""] = ""
    deaths: int = 0
    replaced: bool = False  #: has to reset before it can answer

    @property
    def size(self) -> int:
        return int(self.part.stop - self.part.start)


class WorkerVectorEnv(VectorEnv):
    """N environments in worker processes.

    Args:
      config: which environment.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      workers: processes at most.
    """

    def __init__(self, config: EnvConfig, num_envs: int, seed: int, workers: int) -> None:
        super().__init__(num_envs)
        self._env_id, self._kwargs = config.id, dict(config.kwargs)
        self._context = multiprocessing.get_context("spawn")
        self._poll = select.poll()
        self._statistics = EpisodeStatistics(num_envs)
        self._leaving: list[Any] = []
        self._begun, self._opened = True, False
        bounds = np.linspace(0, num_envs, min(workers, num_envs) + 1).astype(int).tolist()
        self._workers = [_Worker(slice(low, high)) for low, high in pairwise(bounds)]
        for worker in self._workers:
            self._start(worker, seed + worker.part.start)

    @property
    def processes(self) -> int:
        """See the base class."""
        return len(self.files) + len(self._leaving)

    def reset(self) -> None:
        """See the base class."""
        self._begin(RESET, None)

    def step(self, actions: NDArray[Any]) -> None:
        """See the base class."""
        self._begin(STEP, actions)

    def collect(self) -> bool:
        """See the base class."""
        for file, _ in self._poll.poll(0):
            self._take(next(worker for worker in self._workers if worker.pipe and worker.pipe.fileno() == file))
        if not self._begun or any(worker.awaits for worker in self._workers):
            return False
        self._begun, self._opened = False, True
        rows = self.rows
        self._statistics.forget(rows["first"])  # an episode may have been cut off without an end
        self.episodes = self._statistics.update(rows["reward"], rows["first"], rows["terminated"] | rows["truncated"])
        return True

    def close(self) -> None:
        """See the base class."""
        for worker in self._workers:
            self._drop(worker)

    def closed(self, *, force: bool) -> bool:
        """See the base class."""
        for process in list(self._leaving):
            if force:
                process.kill()
                process.join(EXIT_S)
            if force or not process.is_alive():
                self._leaving.remove(process)
        return not self._leaving

    def _start(self, worker: _Worker, seed: int | None) -> None:
        with contained(f"env.id {self._env_id!r}: a process for it cannot be started"):
            ours, theirs = self._context.Pipe()
            worker.process = self._context.Process(
                target=serve, args=(theirs, self._env_id, self._kwargs, worker.size, seed), daemon=True
            )
            worker.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        worker.pipe, worker.awaits, worker.replaced = ours, "spec", seed is None
        self._poll.register(ours, select.POLLIN)
        self._list_files()

    def _drop(self, worker: _Worker) -> None:
        if worker.pipe is None:
            return
        self._poll.unregister(worker.pipe)
        worker.pipe.close()
        worker.pipe = None
        self._leaving.append(worker.process)
        self._list_files()

    def _list_files(self) -> None:
        self.files = tuple(worker.pipe.fileno() for worker in self._workers if worker.pipe)

    def _begin(self, command: bytes, actions: NDArray[Any] | None) -> None:
        self._begun = True
        for worker in self._workers:
            if worker.pipe is None:
                self._start(worker, None)
                continue
            worker.awaits = "rows"
            with contextlib.suppress(OSError):  # it has died: collect finds the end of its pipe
                worker.pipe.send_bytes(command)
                if actions is not None:
                    worker.pipe.send_bytes(actions[worker.part].tobytes())

    def _take(self, worker: _Worker) -> None:
        assert worker.pipe is not None
        try:
            outcome = unpack(worker.pipe.recv_bytes())
            if "fatal" in outcome:
                raise EnvError(outcome["fatal"])
            if "spec" in outcome:
                self._made(worker, EnvSpec.from_wire(outcome["spec"]))
                return
            worker.pipe.recv_bytes_into(self.rows[worker.part].view(np.uint8).data)
        except (EOFError, OSError):
            self._died(worker)
            return
        worker.awaits, worker.replaced = "", False
        self._count(outcome["failures"], worker.part.start)
        if not self.rows["first"][worker.part].all():
            worker.deaths = 0

    def _made(self, worker: _Worker, spec: EnvSpec) -> None:
        """Environments exist; those of a worker that replaces another have to be reset before they can answer."""
        if not hasattr(self, "spec"):
            self.spec = spec
            self.rows = rows_for(spec, self.num_envs)
        elif spec != self.spec:
            raise EnvError(f"environments {self._env_id!r} of one session differ: {spec} and {self.spec}")
        worker.awaits = ""
        if worker.replaced:
            worker.awaits = "rows"
            assert worker.pipe is not None
            with contextlib.suppress(OSError):
                worker.pipe.send_bytes(RESET)

    def _died(self, worker: _Worker) -> None:
        worker.process.join(EXIT_S)
        code = worker.process.exitcode
        awaited = worker.awaits
        self._drop(worker)
        if not self._opened:
            raise EnvError(f"env.id {self._env_id!r} cannot be made: its process ended with exit code {code}")
        self.errors += worker.size
        worker.deaths += 1
        log.error("a process of %d environments %r ended with exit code %s", worker.size, self._env_id, code)
        if worker.deaths >= MAX_DEATHS:
            raise EnvError(f"environment {self._env_id!r} ended its process {MAX_DEATHS} times, exit code {code}")
        if awaited:
            self._start(worker, None)

    def _count(self, failures: list[list[Any]], start: int) -> None:
        for index, text in failures:
            self.errors += 1
            if self.errors <= MAX_LOGGED:
                log.error("environment %d, %r, raised and was made anew:\n%s", start + index, self._env_id, text)
