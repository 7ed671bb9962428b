"""The process that steps single environments, one after the other. `Worker` is what the server holds of it; the rest
of the server's side is in `workers`.

server -> worker                        worker -> server
                                        once, at the start: an outcome with `spec`, `agents`, `takes_options` and
                                        `independent` of the environments
                                        PROGRESS: the next environment has its turn, while this takes long
RESET and msgpack [seed, options, only] an outcome with rows
STEP and the actions                    an outcome with rows
end of the pipe: close, exit

In front of a request is the progress of the run, a little-endian double, which `env.options` may depend on.
An outcome is a msgpack map: `rows`, bytes of `step_record`, `episodes`, those `lost`, `failures` [[environment, reason
and traceback], ...], `infos` and how many were `left_out`, what there is to see (`scenes.pack_scene`), if a fresh
process may help environments that have `failed`, how often each has, and if this process is `worn`, why; or `fatal`, a
sentence, `failures`, and whether this is due to a `wrong_interface`.
Each is one message, because switching between processes is most of the cost of a cheap environment. Only bytes go
through the pipe.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import resource
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from zerobeast.common.errors import EnvError, WrongInterface
from zerobeast.common.process.environ import withhold_secrets
from zerobeast.common.process.marks import MARK, end_marked
from zerobeast.common.process.usage import memory_bytes
from zerobeast.common.wire import action_record
from zerobeast.common.wire.codec import pack, unpack
from zerobeast.common.wire.episodes import Entry
from zerobeast.services.envserver.infos import InfoTable
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.shard import format_account

RESET, STEP, PROGRESS = b"R", b"S", b"."
START = RESET + pack([None, None, None])
OVERRUN_FACTOR = 1.25  #: times its limit, at which a process is replaced in the middle of episodes
GOLDEN_RATIO = 0.618034  #: numbers times this are spread evenly after the decimal point
PROGRESS_S = 0.1  #: between two messages of progress at least


@dataclass
class Wear:
    """What a process may play and take before it is replaced, since simulators leak memory; 0: any."""

    episodes: int = 0
    memory_bytes: int = 0  #: of it and what it has started
    share: float = 1.0  #: of both, after which it is replaced
    played: int = 0
    begun: bool = False

    def sooner(self, seed: int) -> Self:
        """The same for the first process of several, up to a quarter earlier, so that they do not end all at once."""
        return replace(self, share=1 - seed * GOLDEN_RATIO % 1 / 4)

    def begin(self) -> None:
        """Note that episodes begin. Raises EnvError if the process takes all of the memory before the first."""
        if not self.begun and 0 < self.memory_bytes <= (taken := memory_bytes()):
            expected = f"expected more than the {taken >> 20} MB that a process uses before its first step"
            raise EnvError(f"envserver.max_process_memory_mb {self.memory_bytes >> 20}: {expected}")
        self.begun = True

    def after(self, over: int) -> str:
        """Count episodes that are over in a step; returns why this process is to be replaced now, or nothing."""
        self.played += over
        if over and 0 < self.episodes * self.share <= self.played:
            return f"{self.played} episode{'s' * (self.played > 1)}"
        limit = self.memory_bytes * self.share * (1 if over else OVERRUN_FACTOR)
        if 0 < limit <= (taken := memory_bytes()):
            return f"{taken >> 20} MB of memory"
        return ""


@dataclass
class Worker:
    """What an env-server holds of one process: its slice of the environments."""

    envs: slice  #: of the environments
    part: slice  #: of the rows
    seed: int  #: for its first process, and for each that replaces a worn one
    seeded: bool = True  #: whether the next process gets it, and not any seed, as in place of one that has failed
    process: Any = None
    pipe: Connection | None = None  #: None while there is no process
    mark: str = ""  #: carried by every process that it starts
    start: bytes = START  #: the request that a new process gets in place of one that is under way
    awaits: Literal["spec", "reset", "step", ""] = "spec"
    since: float = 0.0  #: when that was asked for, or progress made; without a pipe: since then, or when to start one
    outcome: dict[str, Any] = field(default_factory=dict)  #: the newest
    was_reset: bool = False
    deaths: int = 0
    lost: list[Entry] = field(default_factory=list)  #: episodes in progress of processes that failed since an answer
    oom_before: dict[str, int] = field(default_factory=dict)  #: what `endings.oom_kills` was when its process began
    hangs: str = ""  #: for how long an environment has not answered, as a text, if that was too long

    @property
    def size(self) -> int:
        """How many environments it has."""
        return int(self.envs.stop - self.envs.start)

    def answer(self) -> tuple[slice, list[Entry], Any, list[Entry]]:
        """Its part of an answer, as for `VectorEnv.take_answer`."""
        lost, self.lost = self.lost + self.outcome.get("lost", []), []
        return self.part, self.outcome.get("episodes", []), self.outcome.get("infos"), lost


def serve(connection: Connection, make: Callable[..., InlineEnvs], wear: Wear, folder: Path) -> None:
    """Run the process until the server closes the pipe or is gone.

    Args:
      connection: to the server.
      make: makes the environments, given what to call after each environment.
      wear: after which the server replaces this process.
      folder: that the server was started in, whatever its own environments have made of that.
    """
    withhold_secrets()
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end
    multiprocessing.current_process().daemon = False  # an environment may start processes, which a daemon may not
    faulthandler.enable()  # a crash, or the server's SIGABRT if this process hangs, writes a traceback
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    threading.Thread(target=_die_with_server, daemon=True).start()
    with contextlib.ExitStack() as stack:
        stack.callback(_end_descendants)  # however this ends, or multiprocessing would wait for them
        stack.enter_context(contextlib.suppress(EOFError, ConnectionError))  # the server has closed the pipe
        shard: InlineEnvs | None = None
        try:
            shard = make(progress=_progress(connection))
            stack.callback(shard.close)
            terms = {name: getattr(shard, name) for name in ("agents", "takes_options", "independent")}
            connection.send_bytes(pack({"spec": shard.spec.to_wire(), **terms}))
            actions = action_record(shard.spec.action).dtype["action"]
            while True:
                connection.send_bytes(pack(_outcome(memoryview(connection.recv_bytes()), shard, actions, wear)))
        except EnvError as error:
            failures = shard.failures if shard else [[0, format_account(error)]] if error.__cause__ else []
            wrong = isinstance(error, WrongInterface)
            connection.send_bytes(pack({"fatal": str(error), "failures": failures, "wrong_interface": wrong}))


def _progress(connection: Connection) -> Callable[[], None]:
    """A function to call after each environment, so that the server's limit is that of one environment."""
    sent_at = 0.0

    def progress() -> None:
        nonlocal sent_at
        if (now := time.monotonic()) - sent_at > PROGRESS_S:
            sent_at = now
            connection.send_bytes(PROGRESS)

    progress()  # this process has started
    return progress


def _outcome(request: memoryview, shard: InlineEnvs, actions: np.dtype[Any], wear: Wear) -> dict[str, Any]:
    (shard.progress,) = struct.unpack_from("<d", request)
    command, body, worn = request[8:9], request[9:], ""
    shard.failures = []
    if command == RESET:
        shard.reset(*unpack(body))
        wear.begin()
    else:
        shard.step(np.frombuffer(body, actions))
        worn = wear.after(shard.over())
    infos = shard.infos if isinstance(shard.infos, InfoTable) else InfoTable(shard.num_envs)
    if shard.wants_infos and infos is not shard.infos:
        infos.put(shard.infos, slice(0, shard.num_envs))
    return {
        "failures": shard.failures,
        "rows": shard.rows.tobytes(),
        "episodes": shard.episodes,
        "lost": shard.lost,
        "infos": infos.infos,
        "left_out": infos.left_out,
        **({"failed": shard.failed} if shard.worn else {"worn": worn} if worn else {}),
        **shard.scene(),
    }


def _die_with_server() -> None:
    """End with the env-server even while an environment is stuck, when no read of the pipe would notice its end."""
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        _end_descendants()
        os._exit(1)


def _end_descendants() -> None:
    """Kill what this process has started: there may be no other process left to do it."""
    end_marked({os.environ[MARK]}, spare=os.getpid())
