"""Pure-Python environments, stepped by worker processes so that a slow or crashing one holds up no other.

Each worker of a session gets a slice of its environments and fills that slice of the rows. The server never waits for a
worker: `files` shows when one has answered. Processes are spawned, never forked, and end with their pipe. If a worker
dies, its environments are made anew, and their next rows are the first of episodes. A worker that does not answer in
time writes a traceback of where it hangs, and is killed. One that has played or grown enough is replaced, as soon as an
episode of its environments has ended.
"""

import contextlib
import logging
import multiprocessing
import os
import selectors
import signal
import struct
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, RemoteProtocolError, WrongInterface, raise_as
from zerobeast.common.plugins import start_folder
from zerobeast.common.process.endings import how_it_ended, oom_kills
from zerobeast.common.process.marks import end_marked, mark_children
from zerobeast.common.text import in_line
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds, EnvSpec
from zerobeast.common.wire.codec import pack, unpack
from zerobeast.common.wire.episodes import MAX_REASON
from zerobeast.common.wire.seeds import continue_seed, slice_seeds
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.shard import backoff_s
from zerobeast.services.envserver.vector import EnvMask, VectorEnv, rows_for
from zerobeast.services.envserver.worker import PROGRESS, RESET, START, STEP, Wear, Worker, serve

log = logging.getLogger(__name__)

MAX_DEATHS = 5  #: of one worker without a step in between, before the session is given up
EXIT_S = 1.0  #: for a process to end after its pipe has
CLOSE_S = 5.0  #: for the environments of a worn process to close themselves
NO_WEAR = Wear()
TRACEBACK_S = 1.0  #: for a process that hangs to write its traceback


class WorkerVectorEnv(VectorEnv):
    """N environments in worker processes.

    Args:
      env_id: as the user wrote it.
      make: makes those of one process, given how many, the seed of the first, and keywords of `Shard`.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      workers: processes at most.
      agents: of each environment; N counts them.
      together: whether those of a process take one call to be made, reset or stepped; it may last as long as all calls.
      wear: after which a process is replaced.
    """

    def __init__(
        self,
        env_id: str,
        make: Callable[..., InlineEnvs],
        num_envs: int,
        seed: int,
        workers: int,
        agents: int = 1,
        *,
        together: bool = False,
        wear: Wear = NO_WEAR,
    ) -> None:
        super().__init__(num_envs, agents)
        self._env_id, self._make, self._together, self._wear = env_id, make, together, wear
        self._context = multiprocessing.get_context("spawn")
        self._selector = selectors.PollSelector()
        self._leaving: list[Any] = []
        self._begun, self._opened = True, False
        envs = num_envs // agents
        bounds = np.linspace(0, envs, min(workers, envs) + 1).astype(int).tolist()
        parts = [(slice(low, high), slice(low * agents, high * agents)) for low, high in pairwise(bounds)]
        self._workers = [Worker(*part, seed + part[0].start) for part in parts]

    @property
    def processes(self) -> int:
        return len(self._workers) + len(self._leaving)

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        for worker in self._workers:
            terms, part_only = [slice_seeds(seed, worker.envs), options], None if only is None else only[worker.part]
            asked = part_only is None or part_only.any()
            if self._together and worker.was_reset and seed is not None and worker.pipe is not None:
                worker.process.kill()  # a seed makes them anew, and simulators in C++ do not free all of the old ones
                self._drop(worker)
                if isinstance(first := terms[0], int):
                    worker.seed, worker.seeded = first, True  # so that the process makes them once
            worker.was_reset = True
            self._begin(worker, RESET + pack([*terms, part_only]) if asked else b"", RESET + pack([*terms, None]))

    def step(self, actions: NDArray[Any]) -> None:
        for worker in self._workers:
            self._begin(worker, STEP + actions[worker.part].tobytes(), START)

    def collect(self) -> bool:
        now = time.monotonic()
        for worker in self._workers:
            if worker.pipe is None and worker.awaits and now >= worker.since and not self._lingers(worker, now):
                try:
                    self.start(worker)
                except EnvError as error:
                    if not self._opened:
                        raise
                    self._retry_later(worker, str(error))
        for key, _ in self._selector.select(0):
            self._take(key.data)
        if not self._begun or any(worker.awaits for worker in self._workers):
            return False
        self._begun, self._opened = False, True
        self.take_answer(worker.answer() for worker in self._workers)
        return True

    def tend(self, now: float, limit_s: float) -> None:
        for worker in self._workers:
            if worker.pipe is None and worker.process is not None and now - worker.since > CLOSE_S:
                worker.process.kill()
            if worker.pipe is None or not worker.awaits:
                continue
            allowed_s = limit_s * (worker.size if self._together else 1)
            late_s = now - worker.since - allowed_s
            if now - worker.since > EXIT_S and not worker.process.is_alive():
                end_marked({worker.mark})  # processes that its environments have forked hold its end of the pipe
            elif late_s > TRACEBACK_S:
                worker.process.kill()
            elif late_s > 0 and not worker.hangs:
                worker.hangs = f"no answer for {allowed_s:g} s with envserver.step_timeout_s {limit_s:g}"
                self.timeouts += 1
                who = f"a process of {worker.size} environments {self._env_id!r}"
                log.error("%s: %s, it hangs at:", who, worker.hangs)
                os.kill(worker.process.pid, signal.SIGABRT)  # faulthandler writes the traceback, and the process ends
        self._reap()

    def close(self) -> None:
        for worker in self._workers:
            self._drop(worker)
        self._workers = []

    def release(self, *, force: bool) -> bool:
        if force:
            for process, _ in self._leaving:
                process.kill()
        self._reap()
        return not self._leaving

    def _lingers(self, worker: Worker, now: float) -> bool:
        """Whether its process before is still ending: both need the same ports and numbers."""
        self._reap()
        return now - worker.since < 2 * CLOSE_S and any(process is worker.process for process, _ in self._leaving)

    def _reap(self) -> None:
        """Drop processes that have ended, and kill whatever they left running."""
        ended = {mark for process, mark in self._leaving if not process.is_alive()}
        self._leaving = [(process, mark) for process, mark in self._leaving if mark not in ended]
        if ended and (left := end_marked(ended)):
            log.warning("environments %r had left %d processes running: killed", self._env_id, left)

    def start(self, worker: Worker) -> None:
        seed, failed = worker.seed if worker.seeded else None, worker.outcome.get("failed", ())
        wear = self._wear if self._opened else self._wear.sooner(worker.seed)
        wants_infos = self.infos is not None
        make = partial(self._make, worker.size, seed, failed=failed, wants_infos=wants_infos)
        with raise_as(EnvError, f"env.id {self._env_id!r}: a process for it cannot be started"):
            resource_tracker.ensure_running()  # multiprocessing's, shared by all workers: it must not carry a mark
            ours, theirs = self._context.Pipe()
            with theirs, mark_children() as worker.mark:  # closed here, so that the pipe ends with the process
                worker.process = self._context.Process(
                    target=serve, args=(theirs, make, wear, start_folder()), daemon=True
                )
                worker.process.start()
        worker.pipe, worker.awaits, worker.seeded = ours, "spec", False
        worker.since, worker.hangs, worker.oom_before = time.monotonic(), "", oom_kills()
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self.files = tuple(key.fd for key in self._selector.get_map().values())

    def _drop(self, worker: Worker) -> None:
        if worker.pipe is None:
            return
        self._selector.unregister(worker.pipe)
        worker.pipe.close()
        worker.pipe, worker.since = None, time.monotonic()
        self._leaving.append((worker.process, worker.mark))
        self.files = tuple(key.fd for key in self._selector.get_map().values())

    def _begin(self, worker: Worker, request: bytes, start: bytes) -> None:
        self._begun, worker.start = True, start
        if worker.pipe is None:
            worker.awaits = "spec"  # collect starts one
        elif request:
            self._send(worker, request)
        else:
            worker.outcome = {}

    def _send(self, worker: Worker, request: bytes) -> None:
        assert worker.pipe is not None
        worker.awaits, worker.since = "step" if request.startswith(STEP) else "reset", time.monotonic()
        with contextlib.suppress(OSError):  # it has died: collect finds the end of its pipe
            worker.pipe.send_bytes(struct.pack("<d", self.progress) + request)

    def _take(self, worker: Worker) -> None:
        assert worker.pipe is not None
        try:
            message = worker.pipe.recv_bytes()
            if message == PROGRESS:
                worker.since = time.monotonic()
            else:
                self._take_outcome(worker, unpack(message))
        except (EOFError, OSError, RemoteProtocolError):  # the last: an environment wrote into what is not its own
            self._on_death(worker)

    def _take_outcome(self, worker: Worker, outcome: Any) -> None:
        if not isinstance(outcome, dict):
            raise RemoteProtocolError("an outcome is a map")
        self.count_failures(outcome.get("failures", []), self._env_id, worker.envs.start)
        if "fatal" in outcome:
            if self._opened and worker.awaits == "spec":
                self._on_death(worker, outcome["fatal"])
                return
            raise (WrongInterface if outcome.get("wrong_interface") else EnvError)(outcome["fatal"])
        if "spec" in outcome:
            self._on_made(worker, EnvSpec.from_wire(outcome["spec"]))
            self.agents, self.independent = outcome["agents"], outcome["independent"]
            self.takes_options = outcome["takes_options"]
            return
        self._fill(worker, outcome.get("rows"))
        worker.awaits, worker.outcome = "", outcome
        if self.infos is not None:
            self.infos.left_out += outcome["left_out"]
        if "failed" in outcome:  # the next request starts a fresh process
            self._give_up(worker, outcome["failures"][-1][1].partition("\n")[0])
            worker.process.kill()
            self._drop(worker)
        elif worn := outcome.get("worn"):
            log.info("a process of %d environments %r is replaced after %s", worker.size, self._env_id, worn)
            self.recycled += 1
            self._drop(worker)
            worker.seed, worker.seeded = continue_seed(worker.seed, 1) % (MAX_ENV_SEED + 1), True

    def _fill(self, worker: Worker, rows: Any) -> None:
        wanted = self.rows[worker.part].view(np.uint8)
        if not isinstance(rows, bytes) or len(rows) != wanted.nbytes:
            raise RemoteProtocolError(f"expected {wanted.nbytes} bytes of rows")
        wanted[:] = np.frombuffer(rows, np.uint8)
        if not self.rows["first"][worker.part].all():
            worker.deaths = 0

    def _on_made(self, worker: Worker, spec: EnvSpec) -> None:
        """Note that environments exist; those of a replacement worker have to be reset before they can answer."""
        if not hasattr(self, "spec"):
            self.spec, self.rows = spec, rows_for(spec, self.num_envs)
        elif spec != self.spec:
            raise EnvError(f"environments {self._env_id!r} of one session differ: {spec} and {self.spec}")
        worker.awaits = ""
        if self._opened:
            self._send(worker, worker.start)

    def _on_death(self, worker: Worker, why: str = "") -> None:
        worker.process.join(EXIT_S)
        code = worker.process.exitcode
        worker.process.kill()
        how = "it has closed its pipe" if code is None else how_it_ended(code, worker.oom_before)
        why = why or worker.hangs or how
        self._drop(worker)
        if not self._opened:
            raise EnvError(f"env.id {self._env_id!r} cannot be made: its process ended, {why}")
        if not worker.deaths or worker.awaits == "step":  # otherwise those in progress are lost already
            self._give_up(worker, why)
        self.errors += worker.size
        log.error("a process of %d environments %r ended: %s", worker.size, self._env_id, why)
        self._retry_later(worker, why)

    def _give_up(self, worker: Worker, why: str) -> None:
        """Note that the episodes of a process that have had a step, or are in one, and have not ended, are lost."""
        rows = self.rows[worker.part]
        waiting = rows["first"] & (worker.awaits != "step" or self.agents > 1)  # of several agents some may be absent
        playing = ~(waiting | rows["terminated"] | rows["truncated"])
        worker.lost = [[in_line(why, MAX_REASON), row] for row in np.flatnonzero(playing).tolist()]

    def _retry_later(self, worker: Worker, why: str) -> None:
        """Retry later after a process ended or could not be started, unless that has happened too often."""
        worker.deaths += 1
        if worker.deaths >= MAX_DEATHS:
            raise EnvError(
                f"environment {self._env_id!r} lost its process {MAX_DEATHS} times without a step in between, "
                f"most recently: {why}"
            )
        worker.awaits = "spec" if worker.awaits else ""
        worker.since = time.monotonic() + backoff_s(worker.deaths + 2)  # a process costs more than an environment
