"""What callers ask of the learner of a run while it trains: a file for each request, which it takes with its next row.

{"log": {"difficulty": 1.5}}          values for the next row of metrics
{"set": {"ppo.entropy_cost": 0.001}}  settings that may change while it trains, by path
"""

import json
import math
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import explain_os_errors, write_atomically
from zerobeast.common.files.links_outside import refuse_links_outside
from zerobeast.common.files.regular_files import open_regular, read_small_json, read_small_text

MAX_REQUESTS = 1000  #: that are taken at a time
MAX_NUMBER = 1e18  #: number
NAME = re.compile(r"(?!info/)[A-Za-z_][\w./-]{0,99}")
LOG, SET = "log", "set"
LOGGED_FILE = "logged"  #: beside the requests: a line for each name under which something was logged


def post_request(folder: Path, kind: str, values: Mapping[str, Any]) -> None:
    """Ask for something. Raises ConfigError if the folder of the run cannot be written, or leads elsewhere."""
    place = folder / run_files.REQUESTS
    refuse_links_outside(folder)
    with explain_os_errors(f"{place} cannot be written"):
        place.mkdir(exist_ok=True)
    write_atomically(place / f"{time.time_ns():020}.json", json.dumps({kind: values}, default=str), durable=False)


def read_logged_columns(folder: Path) -> set[str]:
    """The columns of metrics.csv that are of callers."""
    with suppress(OSError, UnicodeError):
        return {*read_small_text(folder / run_files.REQUESTS / LOGGED_FILE).splitlines()}
    return set()


def select_loggable(folder: Path, asked: Mapping[str, Any], taken: Collection[str]) -> dict[str, float]:
    """What of it can be logged: numbers under names that can be columns and are not taken; their names are kept."""
    named = {name: value for name, value in asked.items() if NAME.fullmatch(name) and name not in taken}
    found = {name: value for name, value in named.items() if is_number(value)}
    if new := found.keys() - read_logged_columns(folder):
        with suppress(OSError), open_regular(folder / run_files.REQUESTS / LOGGED_FILE, "ab") as file:
            file.write("".join(f"{name}\n" for name in new).encode())
    return found


def is_number(value: Any) -> bool:
    """Whether it can be logged: a finite number, not too large."""
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):  # of text, and of arrays with several numbers
        return math.fabs(value) < MAX_NUMBER
    return False


def take_requests(folder: Path) -> dict[str, dict[str, Any]]:
    """Take what was asked for since the last call, of each kind: of several values of one name the newest.

    Raises:
      OSError: the folder of the run cannot be changed.
    """
    found: dict[str, dict[str, Any]] = {LOG: {}, SET: {}}
    waiting = sorted(path for path in (folder / run_files.REQUESTS).glob("*.json") if not path.is_dir())
    for path in waiting[:MAX_REQUESTS]:
        request = read_small_json(path)
        path.unlink(missing_ok=True)
        for kind in found:
            found[kind] |= given if isinstance(given := request.get(kind), dict) else {}
    return found
