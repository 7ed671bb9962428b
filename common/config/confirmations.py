"""What this user has confirmed: values that the files of a folder may give without a flag from now on.

They are kept as digests in the user's state directory, each as the name of an empty file, and hold for one folder and,
unless they are absolute paths, for one working directory, since from another they lead elsewhere. Each argument of a
mapping has one of its own. Where nothing can be written there, nothing is remembered.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import GivenValue
from zerobeast.common.files import run_files, state


def digest_values(path: str, value: Any) -> dict[str, Any]:
    """By their digests, the value of a setting or the entries of a mapping; none of what no setting can have."""
    entries = value.items() if isinstance(value, dict) else [("", value)]
    with suppress(TypeError, ValueError, RecursionError):
        return {_digest(path, *each): each[1] for each in entries}
    return {}


def is_known(one: GivenValue, known: Collection[str]) -> bool:
    """Whether a file may give a setting this value here; `known` are digests that a flag confirms."""
    found = digest_values(one.path, one.value)
    with suppress(OSError):
        return bool(found) and all(
            digest in known or (one.file and state.knows(_digest_in_folder(one.file, digest, value)))
            for digest, value in found.items()
        )
    return False


def remember(file: Path, values: Mapping[str, Any]) -> None:
    """Let a file, or a folder, give settings these values here; none is already known to be wrong."""
    found = {digest: each for path, value in values.items() for digest, each in digest_values(path, value).items()}
    with suppress(OSError):
        state.remember({_digest_in_folder(file, digest, value): "" for digest, value in found.items()})


def _digest_in_folder(file: Path, digest: str, value: Any) -> str:
    """The digest of a value in the folder of the run that a file belongs to, or else in its own. Raises OSError."""
    folder = run_files.folder_of(file) or (file if file.is_dir() else file.parent)
    is_absolute = isinstance(value, str) and value.startswith("/") and "," not in value
    return _digest(digest, str(folder.resolve()), *([] if is_absolute else [str(Path.cwd())]))


def _digest(*parts: Any) -> str:
    return blake2b(json.dumps(parts, default=str).encode(), digest_size=16).hexdigest()
