"""What a file may not decide alone, since a config or a run folder may come from an untrusted source.

A file is data. Which module is imported, who may take part and what is reached beyond this machine is decided by the
flags and environment variables of whoever starts a process; a file that gives such a value is refused unless one of
those does too. config.yaml has all settings of a run, so launchers hand these to their services as flags.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.layers import Given
from zerobeast.common.config.table import RUN, SHORT, value_at
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig

CODE, PEERS, REACH = "imports a module", "decides who may take part", "reaches beyond this machine"
_WHY = {"env": CODE, "evaluate": CODE, "algo": CODE, "net": CODE, "security": PEERS}
_WHICH = re.compile(
    r"algo|env\.(id|kwargs)|evaluate\.levels|net\.(torso|memory)|security\..*|.*\.endpoint|health\.host"
    r"|learner\.(rank_endpoints|meeting)"
)
GUARDED = {path: _WHY.get(path.partition(".")[0], REACH) for path in RUN if _WHICH.fullmatch(path)}
IMPORTED = ("algo", "net.torso", "net.memory")  #: by whoever uses the settings, and not for environments alone
#: flags by which no file admits or reaches anyone, for a command that makes environments alone
ALONE = [f"--{path}={as_text(RUN[path].default)}" for path, why in GUARDED.items() if why != CODE]
#: module:Id, for a constructor to pass on to gymnasium; a module's file may have any name
_IN_ARGUMENTS = re.compile(r"""['"](?!cuda:|\d+:)[^'"/:]+:(?!/)\S""")


def refusals(given: Mapping[str, Given], guarded: Collection[str] = GUARDED) -> Iterator[str]:
    """A sentence for every value, valid or not, that only a file gives and may not give alone."""
    for path, value, where in given.values():
        if path in guarded and where.startswith("file ") and _matters(path, value):
            why, flag = GUARDED[path], shlex.join(flag_of(path, value))
            yield f"{where}: {value!r} {why}, which a file may not decide alone: give {flag} as well"


def flags_of(config: RunConfig) -> list[str]:
    """The flags without which these settings would be refused in a file."""
    values = {path: value_at(config, path) for path in GUARDED}
    return [word for path, value in values.items() if _matters(path, value) for word in flag_of(path, value)]


def _matters(path: str, value: Any) -> bool:
    """Whether this value of a setting imports, admits or reaches anything."""
    if GUARDED[path] == CODE:
        return bool(_IN_ARGUMENTS.search(repr(value))) if path == "env.kwargs" else ":" in str(value)
    if GUARDED[path] == PEERS:
        return bool(value != RUN[path].default)
    if str(value).startswith("file:"):  # which would be written
        return True
    try:
        hosts = [Endpoint(host=str(value))] if path == "health.host" else map(Endpoint.parse, str(value).split(","))
        return not all(host.is_loopback for host in hosts)
    except ConfigError:  # refused as what it is
        return False


def flag_of(path: str, value: Any) -> tuple[str, str]:
    """The flag that gives a setting a value."""
    name = next((name for name, long in SHORT.items() if long == path), path)
    return f"--{name}", json.dumps(value, default=str) if isinstance(value, dict) else as_text(value)
