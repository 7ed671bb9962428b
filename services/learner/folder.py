"""The run's folder belongs to one learner at a time: two would overwrite each other's checkpoints.

A lock keeps a second learner out. On a file system without locks a second one takes the folder over: the file of the
lock has the number of the newest start, and a learner that finds another than its own there writes no more.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.settings import RunConfig

log = logging.getLogger(__name__)


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[Callable[[], None]]:
    """Make the folder if it is missing and lock it; the kernel releases the lock however the process ends.

    Yields:
      A check to call before each write: it raises ConfigError if a later start has taken the folder.

    Raises:
      ConfigError: it cannot be written, or another process holds it.
    """
    start = secrets.token_bytes(8)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / run_files.LEARNER_LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            stack.callback(os.close, handle)
            run_files.lock(handle, folder)
            os.pwrite(handle, start, 0)
        except BlockingIOError as error:
            raise ConfigError(f"{folder}: another process trains this run now: use another name") from error
        except OSError as error:
            raise ConfigError(f"{folder}: the run folder cannot be written: {error.strerror or error}") from error
        with contextlib.suppress(OSError):
            (folder / run_files.CHECKPOINT_DRAFT).unlink()  # left by a learner that was killed while it wrote
        yield lambda: _demand(start, folder)


def _demand(start: bytes, folder: Path) -> None:
    try:
        newest = (folder / run_files.LEARNER_LOCK).read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} was moved or removed while it was in use: nothing more is saved there") from error
    except OSError:
        return  # what is to be written now fails as well, or the next check finds out
    if not newest.startswith(start):
        raise ConfigError(f"{folder}: a later start trains this run now: this one writes no more")


def lead_away(config: RunConfig) -> None:
    """With `learner.store`, make the run's store a link to a folder of its own there, which it keeps if it is renamed.

    On each machine any rank does: the folder of a run may be one for all machines, or one of each.

    Raises:
      ConfigError: it cannot be made.
    """
    if not config.learner.store:
        return
    store, place = config.store, Path(config.learner.store).expanduser().absolute()
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # of an earlier start, or by another rank
            store.symlink_to(place / f"{config.name}-{secrets.token_hex(4)}")
    except OSError as error:
        raise ConfigError(f"learner.store {place}: {store} cannot be made a link: {error.strerror}") from error
    if (theirs := Path(os.path.realpath(store))).parent != place.resolve():
        log.warning("learner.store %s has no effect: this run has its replay in %s", place, theirs)
