"""A service of `beast chaos network` whose time-outs are shorter, since tests cannot wait for the real ones."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch

from zerobeast.services.actor.waits import TIMEOUTS as WAITS
from zerobeast_tools.chaos import network_run, network_service

FACTOR = "HURRY"  #: environment variable with the factor by which time-outs are shorter
TIMEOUTS = {
    "zerobeast.common.wire.stream": ("RESEND_AFTER_S", "RESEND_LIMIT_S", "BUSY_PERIOD_S"),
    "zerobeast.common.transport.sockets": ("CONNECT_MS", "HANDSHAKE_MS", "RETRY_MS", "STUCK_MS"),
    "zerobeast.rl.acting.weights_inbox": ("LOOKUP_PERIOD_S", "SILENCE_S"),
}


@contextmanager
def shorten_timeouts(factor: float) -> Iterator[None]:
    """A context in which the services of `beast chaos network` runs have time-outs shorter by `factor`."""
    with patch.object(network_run, "MODULE", __name__), patch.dict(os.environ, {FACTOR: str(factor)}):
        yield


def hurry(factor: float) -> None:
    """Shorten the time-outs of this process."""
    for name, constants in TIMEOUTS.items():
        module = import_module(name)
        for constant in constants:
            value = getattr(module, constant)
            setattr(module, constant, type(value)(value / factor))
    for field in ("silent", "no_progress", "lookup"):
        object.__setattr__(WAITS, field, getattr(WAITS, field) / factor)


if __name__ == "__main__":
    hurry(float(os.environ[FACTOR]))
    sys.exit(network_service.run_service(sys.argv[1:]))
