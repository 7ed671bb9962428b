"""Opening files in a folder that may come from somebody else: regular files alone, and without waiting.

What has the name of a file there may be a pipe, whose other end never comes, a device, or a link that leads elsewhere.
"""

import errno
import functools
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MAX_TEXT_BYTES, MAX_LOG_BYTES, MAX_TABLE_BYTES = (
    1 << 20,
    1 << 16,
    1 << 28,
)  #: bytes of a small file, of the end of a log, and of a table
HARD_LINK = "it has another name as well (a hard link): copy its folder with `cp -r`, and use the copy in its place"


def open_descriptor(path: str | Path, flags: int) -> int:
    """A descriptor of a regular file, opened with flags of `os.open`.

    A file that is changed in place is one without another name: what looks like a log may be a link to another file.

    Raises:
      OSError: it is no such file, or cannot be opened.
    """
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    # Windows, on which clients run, has none of these; with the last, a file that a file server leases is not opened
    names = ("O_NOCTTY", "O_CLOEXEC") + ("O_NOFOLLOW",) * writes + ("O_NONBLOCK",) * (not os.path.isfile(path))
    flags |= sum(getattr(os, name, 0) for name in names)
    descriptor = os.open(path, flags & ~os.O_TRUNC, 0o666)
    status = os.fstat(descriptor)
    shared = writes and status.st_nlink > 1
    if stat.S_ISREG(status.st_mode) and not shared:
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, HARD_LINK if shared else "not a regular file", str(path))


def open_regular(path: Path, mode: str = "rb", buffering: int = -1) -> Any:
    """A file as `open` returns it, under the conditions of `open_descriptor`. Raises OSError."""
    return open(path, mode, buffering, opener=open_descriptor)


def read_small_text(path: Path, most: int = MAX_TEXT_BYTES) -> str:
    """The text of a file.

    Raises:
      OSError: it cannot be read, is no regular file, or is larger.
      ValueError: it is not UTF-8.
    """
    with open_regular(path) as file:
        return read_rest(file, most).decode()


def read_text_or_pipe(path: Path) -> str:
    """As `read_small_text`, of a file that the user has named: it may be a pipe, as <(...) and /dev/stdin are."""
    return _read_pipe(path) if path.exists() and not path.is_file() else read_small_text(path)


@functools.cache
def _read_pipe(path: Path) -> str:
    """The text from a pipe, which can be read once."""
    with path.open("rb") as file:
        return read_rest(file, MAX_TEXT_BYTES).decode()


def read_rest(file: BinaryIO, most: int) -> bytes:
    """What is left to read of a file, which has at most `most` bytes. Raises OSError if it has more."""
    if os.fstat(file.fileno()).st_size > most or len(content := file.read(most + 1)) > most:  # the size of a pipe is 0
        raise OSError(errno.EINVAL, f"more than {most:,} bytes", file.name)
    return content


def read_last_lines(path: Path, start: int = 0) -> list[str]:
    """The lines with text at the end of a log, none before byte `start`; none at all if it cannot be read."""
    with suppress(OSError), open_regular(path) as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        return [
            line.rstrip() for line in file.read(MAX_LOG_BYTES).decode(errors="replace").splitlines() if line.strip()
        ]
    return []


def read_small_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if it has none, or cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(found := json.loads(read_small_text(path)), dict):
            return found
    return {}
