"""How many files this process may have open. Each connection counts as one; a client of a plane has two.

When a server on tcp runs out, new connections wait until others end, and existing ones carry on. On a unix socket
libzmq 4.3.5 ends the process instead, so a run on one machine does not start if that could happen.
"""

import os
import resource
from pathlib import Path

from zerobeast.common.errors import ConfigError

PLENTY = 65_536  #: what a server asks for: enough for the two connections of each of 30,000 clients
LEAST = 64  #: what a service needs for itself
NEARLY = 0.8  #: share of the limit above which a service warns
OPEN = Path("/proc/self/fd")


def allow_files(wanted: int = PLENTY, needed: int = LEAST, why: str = "this service") -> None:
    """Raise this process's own limit to `wanted`, or as far as the system lets it.

    Raises:
      ConfigError: the system allows fewer than `needed`.
    """
    soft, hard = (PLENTY if limit == resource.RLIM_INFINITY else limit for limit in _limits())
    if hard < needed:
        raise ConfigError(
            f"{why} may need {needed:,} open files, and this system allows a process {hard:,}: raise `ulimit -n`"
        )
    if soft < min(wanted, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), _limits()[1]))


def max_files() -> int:
    """How many files this process may have open."""
    soft, _ = _limits()
    return PLENTY if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """How many files this process has open; 0 if the system does not say."""
    try:
        return os.stat(OPEN).st_size or len(os.listdir(OPEN))  # since Linux 6.2 the size is the count: no file to open
    except OSError:
        return max_files() if OPEN.exists() else 0


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
