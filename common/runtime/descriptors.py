"""How many files this process may have open. Every connection is one; a client of a plane has two.

A server on tcp that runs out lets new connections wait until others end; what is connected goes on. On a unix socket
libzmq 4.3.5 ends the process instead, so that a run on one machine does not start where that could happen.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from zerobeast.common.errors import ConfigError

PLENTY = 65_536  #: what a server asks for: the two connections of 30,000 clients
LEAST = 64  #: what a service needs for itself
NEARLY = 0.8  #: of the limit, from where on a service warns
OPEN = Path("/proc/self/fd")


def allow_files(wanted: int = PLENTY, needed: int = LEAST, why: str = "this service") -> None:
    """Raise this process's own limit to `wanted`, or as far as the system lets it.

    Raises:
      ConfigError: that is less than `needed`.
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
    """How many it has open; 0 where the system does not say."""
    try:
        return os.stat(OPEN).st_size or len(os.listdir(OPEN))  # the size says it since Linux 6.2, without a file
    except OSError:
        return max_files() if OPEN.exists() else 0


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
