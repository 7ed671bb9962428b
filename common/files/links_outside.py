"""Links in the folder of a run that lead outside of it: refused before anything is written there."""

import os
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import explain_os_errors


def refuse_links_outside(folder: Path) -> None:
    """Refuse a folder through which files outside of it would be written, read or waited for.

    Args:
      folder: of a run, to be written to. Its store alone may be a link (`learner.store`).

    Raises:
      ConfigError: something in it is neither a folder nor a regular file, or leads out of the folder.
    """
    own = os.path.realpath(folder)
    with explain_os_errors(f"{folder} cannot be looked through"):
        for place, folders, files in os.walk(own, onerror=_raise):
            for path in (os.path.join(place, name) for name in (*folders, *files)):
                if path != os.path.join(own, run_files.STORE) and (why := _refusal(path, own)):
                    raise ConfigError(
                        f"{path} {why}, which is not allowed in the folder of a run: remove it", path=str(path)
                    )


def _refusal(path: str, own: str) -> str:
    if os.path.islink(path):
        leads_to = os.path.realpath(path)
        return "" if f"{leads_to}{os.sep}".startswith(f"{own}{os.sep}") else f"is a link to {leads_to}"
    # a hard link is refused when it is opened to be changed: most files are replaced
    is_usual = os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path)  # removed meanwhile
    return "" if is_usual else "is neither a file nor a folder"


def _raise(error: OSError) -> None:
    raise error
