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

from zerobeast.common.config.layers import Given
from zerobeast.common.files import run_files, state

KIND = "confirmed"  #: folder of digests


def digests(path: str, value: Any, file: Path | None = None) -> list[str]:
    """The digest of a setting's value, of each entry of a mapping; none for what no setting can have as a value.

    With a file they hold for the folder of the run that it belongs to, or else for its own. Raises OSError then.
    """
    entries = value.items() if isinstance(value, dict) else [("", value)]
    places = [_places(file, each) if file else () for _, each in entries]
    with suppress(TypeError, ValueError, RecursionError):
        texts = [json.dumps([path, *each, *where], default=str) for each, where in zip(entries, places, strict=True)]
        return [blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
    return []


def is_known(one: Given, known: Collection[str]) -> bool:
    """Whether a file may give a setting this value here; `known` are digests that a flag confirms."""
    given = [digest in known for digest in digests(one.path, one.value)]
    if all(given):
        return bool(given)
    with suppress(OSError):
        here = digests(one.path, one.value, one.file)
        return all(by_flag or state.knows(KIND, digest) for by_flag, digest in zip(given, here, strict=True))
    return False


def remember(file: Path, values: Mapping[str, Any]) -> None:
    """Let a file, or a folder, give settings these values here; none is already known to be wrong."""
    with suppress(OSError):
        state.remember(KIND, [digest for path, value in values.items() for digest in digests(path, value, file)])


def _places(file: Path, value: Any) -> list[str]:
    folder = run_files.folder_of(file) or (file if file.is_dir() else file.parent)
    is_absolute = isinstance(value, str) and value.startswith("/") and "," not in value
    return [str(folder.resolve()), *([] if is_absolute else [str(Path.cwd())])]
