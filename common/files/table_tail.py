"""Tables that grow while somebody reads them: complete lines, each once; all of them again if the file was replaced.

A last line that is still being written does not count.
"""

import os
from contextlib import suppress
from copy import copy
from pathlib import Path

from zerobeast.common.files.regular_files import MAX_TABLE_BYTES, open_regular

MAX_ROW_BYTES = 1 << 16  #: bytes of a row


class TableTail:
    """The lines of one table.

    Args:
      path: of the file, which need not be there yet.

    Attributes:
      header: its first line.
      again: whether the lines of the last call began with the first one.
    """

    def __init__(self, path: Path) -> None:
        self.header, self.again = b"", False
        self._path, self._file, self._at = path, 0, 0

    def under(self, path: Path) -> "TableTail":
        """The same table, as far as it was read, for when its file has another name."""
        other = copy(self)
        other._path, other.again = path, True
        return other

    def new(self) -> list[bytes]:
        """Lines behind the header that were completed since the last call."""
        lines: list[bytes] = []
        with suppress(OSError), open_regular(self._path) as file:
            status, header = os.fstat(file.fileno()), file.readline(MAX_ROW_BYTES)
            self.again = (self._file, self.header) != (status.st_ino, header) or status.st_size < self._at
            if self.again:
                self._file, self.header, self._at = status.st_ino, header, len(header)
            file.seek(self._at)
            lines = split_complete_lines(file.read(MAX_TABLE_BYTES))
        self._at += sum(len(line) + 1 for line in lines)
        return lines


def split_complete_lines(lines: bytes) -> list[bytes]:
    """Those that are complete."""
    return lines.split(b"\n")[:-1]
