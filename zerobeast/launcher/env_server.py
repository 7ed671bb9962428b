"""An env-server of its own, for one who steps environments outside a run."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zerobeast.common.config import trust
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.load import dump
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import run_files
from zerobeast.common.health.status import read_status
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.child import Child, stop
from zerobeast.launcher.private_folder import private_folder
from zerobeast.plan.processes import ProcessSpec, child_environ, service_command, settings_flags, socket_endpoint

START_LIMIT_S = 300.0  #: at the niceness of an evaluator on a full machine; a process that ends is noticed at once
STOP_LIMIT_S = 5.0


@contextmanager
def env_server(config: RunConfig) -> Iterator[str]:
    """Run an env-server until the context is left, without the run's limits of shared ones; yields its endpoint.

    Raises:
      BeastError: it ended, for the reason in its log.
    """
    with private_folder() as place:
        endpoint = socket_endpoint(place, "envserver")
        status, log, file = place / "status.json", place / "log", place / run_files.CONFIG
        own = config.model_copy(update={"envserver": config.envserver.for_one()})
        file.write_text(dump(own), encoding="utf-8")
        command = service_command(
            "envserver",
            *settings_flags(config, file),
            *flags_for(trust.SAFE_VALUES),
            *("--envserver.endpoint", endpoint, "--supervisor-pid", str(os.getpid())),
            *("--status-file", str(status), "--health.port", "0"),
        )
        environ, most = child_environ(os.environ), config.local.log_bytes
        child = Child(ProcessSpec("envserver", 0, command, environ, log, status, log_bytes=most))
        child.start()
        deadline = time.monotonic() + START_LIMIT_S
        try:
            while not read_status(status).health:
                if not child.running or time.monotonic() > deadline:
                    raise PeerLost(f"the env-server did not start within {START_LIMIT_S:.0f} s")
                time.sleep(0.01)
            yield endpoint
        except PeerLost as error:
            if child.running:
                raise
            kind = ConfigError if child.code == ConfigError.exit_code else BeastError
            raise kind(child.explain()) from error
        finally:
            stop([child], STOP_LIMIT_S)
