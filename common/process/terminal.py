"""The only place from which a process writes to its standard output and standard error, apart from its log.

Much of what is printed comes from files and peers that are not to be trusted: what would control a terminal is escaped.
"""

import contextlib
import sys
from typing import TextIO

from zerobeast.common.text import printable


def write(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Print lines, with escapes for control characters and for what the file cannot encode.

    Args:
      text: the lines.
      file: by default stdout.
      end: printed after them as it is.

    Raises:
      OSError: nobody reads any more.
    """
    stream = sys.stdout if file is None else file
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = printable(text, lines=True).encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=stream, end=end)
    getattr(stream, "flush", bool)()  # a program may have put any object with `write` in the place of stdout, or None


def say(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """As `write`, but whoever stopped reading misses it."""
    with contextlib.suppress(OSError, ValueError):
        write(text, file, end)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    asked = getattr(sys.stdout, "isatty", None)
    with contextlib.suppress(ValueError):  # it is closed
        return bool(asked and asked())
    return False
