"""From `python -m zerobeast.services.<role>` to a running service, and from its end to an exit code.

    0   stopped, by SIGTERM, Ctrl-C or because its work is done
    2   a setting is wrong
    75  a peer stayed away, or a disk is full: worth another try
    1   anything else; a traceback means a bug

The order matters. Signals are handled before anything slow is imported, settings are checked before torch is imported,
and the number of threads is fixed before numpy and torch read it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pkgutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.extras import how_to_install
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import explained, write_atomically
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.process.environ import restrict_imports, withhold_secrets
from zerobeast.common.process.roles import HOSTED
from zerobeast.common.process.terminal import say, write
from zerobeast.common.process.usage import allow_files, give_way, keep_freed_memory, stay_on, take_long_turns
from zerobeast.version import __version__

if TYPE_CHECKING:
    from zerobeast.common.config.load import Loaded
    from zerobeast.common.config.process import Instance
    from zerobeast.common.service.base import Service
    from zerobeast.common.service.loop import Loop
    from zerobeast.common.settings import RunConfig

log = logging.getLogger(__name__)

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CLASSES = {name.lower(): name for name in ("Learner", "Broker", "EnvServer", "Actor", "Evaluator")}
NICENESS = {"worker": 5, "evaluator": 15}  #: of processes that could use every core all the time
INSIDE = ("broker", "envserver")  #: roles whose planes stay in a process that hosts their clients as well


def services_of(process: str, config: RunConfig, instance: Instance) -> list[Service]:
    """The services of a kind of process in starting order, imported now that all settings are known to be right.

    Several meet at inproc endpoints.

    Raises:
      ConfigError: there is one secret key for all, but each role needs its own.
    """
    roles, inside = HOSTED[process], config
    if len(roles) > 1:
        if config.security.secret:
            takes = "which takes secret/broker.key_secret and secret/actor.key_secret from the folder security.keys"
            raise ConfigError(f"security.secret {config.security.secret!r}: expected nothing for a worker, {takes}")
        update = {role: getattr(config, role).model_copy(update={"endpoint": f"inproc://{role}"}) for role in INSIDE}
        inside = config.model_copy(update=update)
    kinds = {role: pkgutil.resolve_name(f"zerobeast.services.{role}.service:{CLASSES[role]}") for role in roles}
    # a learner saves its settings with the weights, for other processes
    return [kind(config if role == "learner" else inside, instance) for role, kind in kinds.items()]


Build = Callable[[str, "RunConfig", "Instance"], "list[Service]"]


class _Signals:
    """SIGTERM and SIGINT stop the service, or end the process at once if there is none yet."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.asked = ""  #: by which signal
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.asked = signal.Signals(number).name  # an import may swallow what is raised here
        if self.loop is None:
            raise SystemExit(0)
        self.loop.stop()


def main(
    role: str, argv: Sequence[str], environ: Mapping[str, str] | None = None, *, build: Build = services_of
) -> int:
    """Run one process to its end; returns the exit code.

    Args:
      role: as in `services.<role>`.
      argv: flags, without the program's name.
      environ: environment variables with settings; None: those of this process.
      build: makes its services.
    """
    environ = dict(os.environ if environ is None else environ)  # settings may have such names too
    if argv[:1] == ["health"]:
        from zerobeast.common.health.command import main as health

        return health(role, argv[1:], environ)
    signals = _Signals()
    restrict_imports()
    withhold_secrets()
    try:
        with explained("the current folder"):
            os.getcwd()
        if any(flag in ("-h", "--help") for flag in argv):
            return _help(role)
        return _run(role, build, signals, argv, environ)
    except BeastError as error:
        code, text = error.exit_code, str(error)
    except ModuleNotFoundError as error:
        code, text = ConfigError.exit_code, how_to_install(error)
    say("\n".join(f"{role}: {line}" for line in text.split("\n")), sys.stderr)  # on a full disk the exit code counts
    return code


def _run(role: str, build: Build, signals: _Signals, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    from zerobeast.common.config.load import gather
    from zerobeast.common.config.process import Instance

    loaded = gather(argv, environ, own=Instance)
    root = str(Path(loaded.config.root).expanduser().absolute())  # an environment may change this process's folder
    config, instance = loaded.config.model_copy(update={"root": root}), loaded.own
    hosted = HOSTED.get(role, ())
    torch_threads = config.learner.threads if "learner" in hosted else config.broker.threads * ("broker" in hosted)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(torch_threads or 1)))
    _announce(role, instance, loaded)
    stay_on(instance.core)
    allow_files()
    keep_freed_memory()
    if role != "actor":  # an actor hardly computes, and the others wait for its turn
        take_long_turns()
    if niceness := NICENESS.get(role, 0):
        give_way(niceness)
    gc.disable()  # what is imported stays, and to look for garbage in it takes a seventh of the time of a start
    try:
        services = build(role, config, instance)
    finally:
        gc.freeze()
        gc.enable()
    for service in services:
        service.run_name = config.name
    from zerobeast.common.service.loop import Loop

    follows = config.learner.when_done == "evaluated" and "learner" not in hosted
    over = partial(is_over, config, EvaluationQueue(config.folder, config.envserver.step_timeout_s))
    signals.loop = loop = Loop(
        services, supervisor_pid=instance.supervisor_pid, over=over if follows else lambda: False
    )
    if signals.asked:
        return 0
    from zerobeast.common.service.health_server import HealthServer

    with ExitStack() as pages:
        for number, service in enumerate(services):
            settings = config.health
            if settings.port and number:
                settings = settings.model_copy(update={"port": settings.port + number})
            health = pages.enter_context(HealthServer(service, settings))
            page = f"{settings.host}:{health.port}"
            loop.until_done(partial(_write_status, service.role, instance, page, shared=len(services) > 1))
        code = loop.attended() if role == "learner" else loop.run()
        if signals.asked:
            log.info("ended by %s", signals.asked)
        return code


def is_over(config: RunConfig, queue: EvaluationQueue) -> bool:
    """Whether the run's folder, if it is to be seen from here, shows that nothing more is done."""
    from zerobeast.common.files import metrics

    waits = config.evaluates and queue.waits(time.monotonic())
    return not waits and metrics.is_over(config.folder, config.total_steps)


def _help(role: str) -> int:
    from zerobeast.common.config.load import settings_help
    from zerobeast.common.config.process import Instance

    purpose = (sys.modules["__main__"].__doc__ or role).strip()
    usage = (
        f"usage: python -m zerobeast.services.{role} [--config FILE] [--<setting> VALUE ...]\n"
        f"       python -m zerobeast.services.{role} health [--help]"
    )
    write(f"{purpose}\n\n{usage}\n\n{settings_help(Instance)}")
    return 0


def _announce(role: str, instance: Instance, loaded: Loaded) -> None:
    from zerobeast.common.config.load import differences
    from zerobeast.common.process.logs import log_to_stderr
    from zerobeast.common.wire.messages import PROTOCOL_VERSION

    log_to_stderr(role if instance.index is None else f"{role}-{instance.index}")
    changed = [
        f"{path}={value} ({loaded.origins[path].partition(' ')[0]})"
        for path, value in differences(loaded.config).items()
    ]
    settings = " ".join(changed) or "all settings at their defaults"
    log.info("zerobeast %s, protocol %d, process %d: %s", __version__, PROTOCOL_VERSION, os.getpid(), settings)
    for note in loaded.notes:
        log.info("%s", note)


def _write_status(role: str, instance: Instance, health: str, *, shared: bool) -> None:
    """Write the address of the health page, for the supervisor, to a file that is replaced atomically.

    Services that share a process have a file each, beside the one that the process was given.

    Raises:
      DiskError: the disk is full; the service works without the file.
      ConfigError: it can never be written.
    """
    if (path := instance.status_file) is None:
        return
    if shared:
        path = run_files.status_of(path, role, instance.index or 0)
    status = {"role": role, "index": instance.index, "pid": os.getpid(), "host": socket.gethostname(), "health": health}
    with explained(f"status file {path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(status), durable=False)
