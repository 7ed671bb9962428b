"""Folders for unix sockets: with a short path, closed to other users, gone with the process that made them.

A process that is killed cannot remove its folder. The kernel releases the lock in it, however, and the process that
makes the next folder removes those that are no longer locked.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zerobeast.common.endpoints import MAX_IPC_PATH

PREFIX, LOCK = "beast-", "owner.lock"
SHORT_PLACE = "/tmp"  # noqa: S108 - mkdtemp makes a folder of its own there
RANDOM_SUFFIX, LONGEST_SOCKET = "12345678", "/envserver-999.2"  #: what is appended, by tempfile and for the sockets


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that no other user can enter, with a path short enough for sockets; removed afterwards."""
    for place in dict.fromkeys((tempfile.gettempdir(), SHORT_PLACE)):
        remove_abandoned(Path(place))
    place = tempfile.gettempdir()
    if len(f"{place}/{PREFIX}{RANDOM_SUFFIX}{LONGEST_SOCKET}") > MAX_IPC_PATH:
        place = SHORT_PLACE
    folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True)
    with folder as name, _hold_lock(Path(name)):
        yield Path(name)


@contextlib.contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Lock a file and only then give it its name, so that it is never seen unlocked while its owner lives."""
    draft = folder / f"{LOCK}.new"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the folder of a killed process stays
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(folder / LOCK)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(place: Path) -> None:
    """Remove this user's folders in `place` whose owner was killed. What cannot be checked or removed stays."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)
