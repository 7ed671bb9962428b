"""Opening files in a folder that may come from somebody else: regular files alone, and without waiting.

What has the name of a file there may be a pipe, whose other end never comes, a device, or a link that leads elsewhere.
"""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST = 1 << 20  #: bytes of a small file
_SAFELY = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")  #: of which Windows, on which clients run, has none


def regular(path: str | Path, flags: int) -> int:
    """A descriptor of a regular file, opened with flags of `os.open`; if it is to be written, not through a link.

    Raises:
      OSError: it is no such file, or cannot be opened.
    """
    flags |= sum(getattr(os, name, 0) for name in _SAFELY)
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def opened(path: Path, mode: str = "rb", buffering: int = -1) -> Any:
    """A file as `open` returns it, under the conditions of `regular`. Raises OSError."""
    return open(path, mode, buffering, opener=regular)


def small_text(path: Path, most: int = MOST) -> str:
    """The text of a file.

    Raises:
      OSError: it cannot be read, is no regular file, or is larger.
      ValueError: it is not UTF-8.
    """
    with opened(path) as file:
        content: bytes = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EINVAL, f"more than {most:,} bytes", str(path))
    return content.decode()


def small_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if it has none, or cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(found := json.loads(small_text(path)), dict):
            return found
    return {}
