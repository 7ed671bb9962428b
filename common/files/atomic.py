"""Files that a reader sees either complete or as they were before, never partly written."""

import contextlib
from pathlib import Path

from zerobeast.common.errors import ConfigError


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file in one step. If that fails, nothing is left of the new one.

    Raises:
      ConfigError: its folder cannot be written.
    """
    draft = path.with_name(path.name + ".new")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
