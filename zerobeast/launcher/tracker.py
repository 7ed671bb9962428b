"""The process beside the services of a run that hands it to an experiment tracker. However it ends, they go on."""

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping

from zerobeast.common.errors import BeastError, ConfigError, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.child import Child, stop
from zerobeast.plan.processes import ProcessSpec, helper_environ
from zerobeast.tracking.process import LIMIT_S, STATUS, tracker_file

log = logging.getLogger(__name__)

LOG = "tracker.log"


@contextlib.contextmanager
def run_tracker(config: RunConfig, name: str, project: str, environ: Mapping[str, str]) -> Iterator[list[Child]]:
    """Hand the run to the tracker of this name, if it is not empty, until the context is left.

    Yields:
      Its process, if there is one.

    Raises:
      ConfigError: it cannot be started.
    """
    if not name:
        yield []
        return
    folder = config.folder.absolute()
    again = ["track", str(folder), "--to", name, "--project", project]
    command = [sys.executable, "-P", "-m", "zerobeast", *again, "--follow", "--parent", str(os.getpid())]
    log_file = folder / run_files.LOGS / LOG
    child = Child(
        ProcessSpec("tracker", 0, command, helper_environ(environ), log_file, tracker_file(folder, name, STATUS))
    )
    with raise_as(ConfigError, f"track {name}", BeastError):
        child.start()
    try:
        yield [child]
    finally:
        stop([child], LIMIT_S)
        command_again = shlex.join(["beast", *again])
        if child.was_killed:
            log.warning("tracker %s did not end within %.0f s; again: %s", name, LIMIT_S, command_again)
        elif child.code:
            log.warning("tracker %s: not everything was written, see %s; again: %s", name, log_file, command_again)
