"""What this user's processes remember on this machine, outside of every run: `zerobeast` in the XDG state folder."""

import errno
import hmac
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from zerobeast.common.errors import BeastError
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.files.regular_files import read_small_text

SECRET, SECRET_BYTES = "secret", 32
KNOWN_FOLDER, MAX_NOTES = "known", 10_000  #: folder of notes, and how many are kept


def state_folder() -> Path:
    """The folder, made if it is missing; nobody else may look into it.

    Raises:
      OSError: it cannot be made.
      RuntimeError: this user has no home.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    folder = (given if given.is_absolute() else Path.home() / ".local/state") / "zerobeast"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def seal(text: str) -> str:
    """A message authentication code: whoever has the state folder of this user, and nobody else, can compute it.

    Raises: as `state_folder`.
    """
    return hmac.new(_secret(), text.encode(), "sha256").hexdigest()


def recall(name: str) -> str | None:
    """The text that `remember` has noted under a name; None if there is none, or it cannot be read."""
    with suppress(OSError, RuntimeError, ValueError):
        return read_small_text(state_folder() / KNOWN_FOLDER / name)
    return None


def knows(name: str) -> bool:
    """Whether `remember` has noted something under a name."""
    return recall(name) is not None


def remember(texts: Mapping[str, str]) -> None:
    """Note texts by name, each as a file, if that can be written; the newest MAX_NOTES are kept."""
    with suppress(OSError, RuntimeError, BeastError):
        (folder := state_folder() / KNOWN_FOLDER).mkdir(exist_ok=True)
        for name, text in texts.items():
            write_atomically(folder / name, text, durable=False)
        for old in sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime)[:-MAX_NOTES]:
            old.unlink(missing_ok=True)


def _secret() -> bytes:
    """The key of all seals, made if it is missing. Of processes that do so at once, all get the same."""
    path = state_folder() / SECRET
    if not path.exists():
        with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # of mode 0600
            draft.write(secrets.token_hex(SECRET_BYTES).encode())
            draft.flush()
            os.fsync(draft.fileno())
            os.link(draft.name, path)  # whole, or not at all
    if len(key := read_small_text(path)) != 2 * SECRET_BYTES:
        raise OSError(errno.EINVAL, f"expected {SECRET_BYTES} bytes in hexadecimal", str(path))
    return key.encode()
