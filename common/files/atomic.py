"""Files that are written whole or not at all, even if the disk is full or fails."""

import contextlib
import os
from collections.abc import Iterator
from errno import EBADF, EINVAL, ENOSYS, ENOTSUP
from pathlib import Path

from zerobeast.common.errors import BeastError, ConfigError, DiskError, is_transient
from zerobeast.common.files.regular_files import open_regular

UNSUPPORTED = frozenset((EINVAL, EBADF, ENOTSUP, ENOSYS))  #: from fsync of a folder on some network file systems


@contextlib.contextmanager
def explain_os_errors(what: str, kind: type[BeastError] = ConfigError) -> Iterator[None]:
    """Turn an OSError into an error of this kind that begins with `what`, such as a path that cannot be written.

    It is a DiskError if the same call may succeed later. The file is named if it is another one than `what` names.
    """
    try:
        yield
    except OSError as error:
        path, kind = str(error.filename or ""), DiskError if is_transient(error) else kind
        file = "" if Path(path).name.removeprefix(".").removesuffix(".new") in what else f"{path}: "
        raise kind(f"{what}: {file}{error.strerror or error}", path=path) from error


@contextlib.contextmanager
def draft_file(path: Path, *, durable: bool) -> Iterator[Path]:
    """A place for a file that replaces `path` when the context is left, or is removed if that is by an error.

    What a killed process left there goes first, and so does a link, which would lead elsewhere.

    Args:
      path: of the file.
      durable: if the machine loses power, `path` has the old or the new contents, and the new ones once this returns.
        Otherwise it may be empty then, but nothing waits for the disk.

    Raises:
      OSError: `path` cannot be replaced.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder if its file system can do that, are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSUPPORTED or not path.is_dir():
            raise
    finally:
        os.close(handle)


def write_atomically(path: Path, contents: str | bytes | memoryview, *, durable: bool) -> None:
    """Replace a file in one step: readers see the old one or the new one, of which nothing is left if that fails.

    Args:
      path: of the file.
      contents: of the new one.
      durable: whether that holds if the machine loses power, as for `draft_file`.

    Raises:
      ConfigError: its folder cannot be written.
    """
    with explain_os_errors(f"{path} cannot be written"), draft_file(path, durable=durable) as draft:
        draft.write_bytes(contents.encode() if isinstance(contents, str) else contents)


class Journal:
    """An unbuffered append-only file: an entry that cannot be written whole is removed at once.

    Raises:
      OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_regular(path, "ab", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)  #: bytes

    def write(self, entry: bytes, *, sync: bool = False) -> None:
        """Write an entry; with `sync`, it is on the disk afterwards.

        Raises:
          OSError: the disk is full or gone; the file is as it was.
        """
        left = memoryview(entry)
        try:
            while left:  # a disk that fills up accepts part of an entry, and fails at the next write
                left = left[self._file.write(left) :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(entry)

    def close(self) -> None:
        self._file.close()
