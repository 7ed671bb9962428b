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
import logging
import os
import pkgutil
import signal
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
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.health import status
from zerobeast.common.health.status import ExitRecord
from zerobeast.common.process.environ import restrict_imports, withhold_secrets
from zerobeast.common.process.roles import RECORDS, SERVICES_BY_PROCESS, Role
from zerobeast.common.process.terminal import say, write
from zerobeast.common.process.usage import allow_files, give_way, keep_freed_memory, stay_on, take_long_turns
from zerobeast.version import __version__

if TYPE_CHECKING:
    from zerobeast.common.config.load import LoadedSettings
    from zerobeast.common.config.process import Instance
    from zerobeast.common.config.request import Request
    from zerobeast.common.service.base import Service
    from zerobeast.common.service.loop import Loop
    from zerobeast.common.settings import RunConfig

log = logging.getLogger(__name__)

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def services_of(process: str, config: RunConfig, instance: Instance) -> list[Service]:
    """The services of a kind of process in starting order, imported now that all settings are known to be right.

    Several meet at inproc endpoints.

    Raises:
      ConfigError: there is one secret key for all, but each role needs its own.
    """
    roles, inside = SERVICES_BY_PROCESS[process], config
    if len(roles) > 1:
        if config.security.secret:
            takes = "which takes secret/broker.key_secret and secret/actor.key_secret from the folder security.keys"
            raise ConfigError(f"security.secret {config.security.secret!r}: expected nothing for a worker, {takes}")
        own = [role for role in roles if RECORDS[role].inside]
        update = {role: getattr(config, role).model_copy(update={"endpoint": f"inproc://{role}"}) for role in own}
        inside = config.model_copy(update=update)
    kinds = {role: pkgutil.resolve_name(f"zerobeast.services.{role}.service:{RECORDS[role].service}") for role in roles}
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
    end, request = ExitRecord("stopped"), None
    try:
        with explain_os_errors("the current folder"):
            os.getcwd()
        if any(flag in ("-h", "--help") for flag in argv):
            return _help(role)
        from zerobeast.common.config.process import Instance
        from zerobeast.common.config.request import Request

        request = Request.of_flags(argv, environ, Instance)
        end = _run_services(role, build, signals, request)
        log.info("%s", end)
    except (BeastError, ModuleNotFoundError, SystemExit) as error:
        end = _end_by(error, signals.asked)
    except Exception as error:
        end = ExitRecord("crashed", f"{type(error).__name__}: {error}", 1)
        raise
    finally:
        if request and (file := request.value("status_file")):  # whether or not all that is given is right
            status.record_end(status.files_of(role, Path(file)), os.getpid(), end)
    if end.code:  # on a full disk the exit code counts
        say("\n".join(f"{role}: {line}" for line in end.sentence.split("\n")), sys.stderr)
    return end.code


def _end_by(error: BeastError | ModuleNotFoundError | SystemExit, asked: str) -> ExitRecord:
    if isinstance(error, BeastError):
        return ExitRecord("failed", str(error), error.exit_code)
    if isinstance(error, ModuleNotFoundError):
        return ExitRecord("failed", how_to_install(error), ConfigError.exit_code)
    if asked:
        return ExitRecord("stopped", f"by {asked}")
    return ExitRecord("crashed", f"code that is not ours has called sys.exit({error.code!r:.100})", 1)


def _run_services(role: str, build: Build, signals: _Signals, request: Request) -> ExitRecord:
    from zerobeast.common.config.load import resolve

    loaded = resolve(request)
    root = str(Path(loaded.config.root).expanduser().absolute())  # an environment may change this process's folder
    config, instance = loaded.config.model_copy(update={"root": root}), loaded.own
    record, hosted = RECORDS.get(role, Role(role)), SERVICES_BY_PROCESS.get(role, ())
    torch_threads = next((getattr(config, name).threads for name in hosted if RECORDS[name].computes), 0)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(torch_threads or 1)))
    _announce(role, instance, loaded)
    stay_on(instance.core)
    allow_files()
    keep_freed_memory()
    if not record.prompt:
        take_long_turns()
    if record.niceness:
        give_way(record.niceness)
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
    if not signals.asked:
        _take_turns(role, config, instance, loop)
    if outcome := "".join(service.outcome for service in services):
        return ExitRecord("finished", outcome)
    return ExitRecord("stopped", f"by {signals.asked}" if signals.asked else "")


def _take_turns(role: str, config: RunConfig, instance: Instance, loop: Loop) -> None:
    """Run services to their end, each with a health page, whose address is in a status file if there are any."""
    from zerobeast.common.service.health_server import HealthServer

    files = status.files_of(role, instance.status_file or Path())
    with ExitStack() as pages:
        for number, service in enumerate(loop.services):
            settings = config.health
            if settings.port and number:
                settings = settings.model_copy(update={"port": settings.port + number})
            health = pages.enter_context(HealthServer(service, settings))
            page = f"{settings.host}:{health.port}"
            if file := files.get(service.role):
                loop.until_done(partial(status.announce, file, service.role, instance.index, page))
        (loop.run_in_own_thread if role == "learner" else loop.run)()


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


def _announce(role: str, instance: Instance, loaded: LoadedSettings) -> None:
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
