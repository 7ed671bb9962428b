"""What this user has confirmed: values that the files of a folder may give without a flag from now on.

They are kept as digests in the user's state directory, each as the name of an empty file, and hold for one folder and
for one working directory, from which relative references and paths lead elsewhere. Where nothing can be written there,
nothing is remembered.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import Given
from zerobeast.common.files import run_files
from zerobeast.common.files.state import state_folder

MOST = 10_000  #: digests that are kept, the newest


def digest(path: str, value: Any, *places: Path) -> str:
    """The digest of a setting's value, for some places; empty for what no setting can have as a value."""
    try:
        text = json.dumps([path, value, *map(str, places)], default=str)
    except (TypeError, ValueError, RecursionError):
        return ""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def is_known(one: Given, known: Collection[str]) -> bool:
    """Whether a file may give a setting this value here; `known` are digests that a flag confirms."""
    if digest(one.path, one.value) in known:
        return True
    with suppress(OSError, RuntimeError):
        assert one.file is not None, "of what others give nothing has to be known"
        return (_folder() / _digest_here(one.file, one.path, one.value)).is_file()
    return False


def remember(file: Path, values: Mapping[str, Any]) -> None:
    """Let a file, or a folder, give settings these values here; none is already known to be wrong."""
    with suppress(OSError, RuntimeError):
        for path, value in values.items():
            (_folder() / _digest_here(file, path, value)).touch(mode=0o600)
            for old in sorted(_folder().iterdir(), key=lambda each: each.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)


def _digest_here(file: Path, path: str, value: Any) -> str:
    """For the folder of a run, if the file belongs to one, or else for that of the file."""
    folder = run_files.folder_of(file) or (file if file.is_dir() else file.parent)
    return digest(path, value, folder.resolve(), Path.cwd())


def _folder() -> Path:
    """The folder of digests. Raises OSError or RuntimeError as `state_folder`."""
    folder = state_folder() / "confirmed"
    folder.mkdir(exist_ok=True)
    return folder
