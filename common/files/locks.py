"""Locks of whole files, which some file systems do not have: Lustre mounted without them, some network file systems."""

import fcntl
import functools
import logging
from pathlib import Path

warn_once = functools.cache(logging.getLogger(__name__).warning)


def lock(descriptor: int, folder: Path) -> None:
    """Lock an open file of a run's folder until it is closed; only warn, once, if its file system has no locks.

    Raises:
      BlockingIOError: another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        sentence = "%s: its file system has no locks (%s): of two learners there, the earlier one will stop"
        warn_once(sentence, folder, error.strerror)
