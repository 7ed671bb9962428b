"""What this user's processes remember on this machine, outside of every run: `zerobeast` in the XDG state folder."""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from zerobeast.common.files.opening import opened

SECRET, SECRET_BYTES = "secret", 32


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
    """By which this user knows a text in a file again as one of its own, wherever the file has been.

    Raises: as `state_folder`.
    """
    path = state_folder() / SECRET
    with suppress(FileExistsError), opened(path, "xb", 0) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(secrets.token_bytes(SECRET_BYTES))
    with opened(path) as file:
        return hmac.new(file.read(SECRET_BYTES), text.encode(), "sha256").hexdigest()
