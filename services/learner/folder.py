"""The run's folder belongs to one learner at a time: two would overwrite each other's checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from zerobeast.common.config.load import dump
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import ConfigError
from zerobeast.common.runtime import run_files
from zerobeast.common.runtime.files import write_atomically


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Make the folder if it is missing and lock it; the kernel releases the lock however the process ends.

    Raises:
      ConfigError: it cannot be written, or another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / run_files.LEARNER_LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ConfigError(f"{folder}: the run folder cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise ConfigError(f"{folder}: another process trains this run now: use another name") from error
    except OSError:
        pass  # a file system without locks
    with contextlib.suppress(OSError):
        (folder / run_files.CHECKPOINT_DRAFT).unlink()  # left by a learner that was killed while it wrote
    try:
        yield
    finally:
        os.close(handle)


def keep_settings(config: RunConfig) -> None:
    """Write the run's settings beside its checkpoint, for `beast evaluate`, unless a launcher has done so.

    Raises:
      ConfigError: the folder cannot be written.
    """
    if not (path := config.folder / run_files.CONFIG).exists():
        write_atomically(path, dump(config))
