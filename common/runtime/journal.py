"""A file that grows by whole entries or not at all, whatever the disk says."""

from __future__ import annotations

import os
from pathlib import Path


class Journal:
    """An append-only file without a buffer: what could not be written whole is taken back at once.

    Raises:
      OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)

    @property
    def empty(self) -> bool:
        """Whether nothing was written yet."""
        return not self._size

    def write(self, entry: bytes) -> None:
        """Write an entry.

        Raises:
          OSError: the disk is full or gone; the file is as it was.
        """
        left = memoryview(entry)
        try:
            while left:  # a full disk first takes a part, and only then says so
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(entry)

    def close(self) -> None:
        self._file.close()
