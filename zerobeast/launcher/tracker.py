"""The process beside the services of a run that hands it to an experiment tracker. However it ends, they go on."""

import contextlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.fleet import child_environ
from zerobeast.tracking.process import LIMIT_S

log = logging.getLogger(__name__)

LOG = "tracker.log"


@contextlib.contextmanager
def tracked(config: RunConfig, name: str, project: str, environ: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Hand the run to the tracker of this name, if it is not empty, until the context is left.

    Yields:
      The log whose warnings are news, by the name of the process.

    Raises:
      ConfigError: it cannot be started.
    """
    if not name:
        yield {}
        return
    folder = config.folder.absolute()
    again = ["track", str(folder), "--to", name, "--project", project]
    command = [sys.executable, "-P", "-m", "zerobeast", *again, "--follow", "--parent", str(os.getpid())]
    path = folder / run_files.LOGS / LOG
    try:
        with path.open("ab") as file:
            process = subprocess.Popen(
                command,
                env=child_environ(environ),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise ConfigError(f"tracker {name} cannot be started: {error}") from error
    try:
        yield {"tracker": path}
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_S)
        if code := process.poll():
            log.warning(
                "tracker %s: not everything was written, see %s; again: beast %s", name, path, shlex.join(again)
            )
        elif code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            log.warning("tracker %s did not end within %.0f s; again: beast %s", name, LIMIT_S, shlex.join(again))
