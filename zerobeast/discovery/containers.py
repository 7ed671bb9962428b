"""What compose and Kubernetes have in common: a command to run, and a health command inside each container."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.health.command import UNREACHABLE
from zerobeast.common.health.views import ServiceView
from zerobeast.common.process.roles import HOSTED

ANSWER_LIMIT_S = 20.0
AT_ONCE = 8  #: containers asked at a time
LAST_LINE = 200  #: characters of a line that says why a container cannot be asked or has ended


def gather(look: Callable[[Any], list[ServiceView]], places: Sequence[Any], most: int = AT_ONCE) -> list[ServiceView]:
    """The services at all these places, of which at most so many are asked at a time."""
    with ThreadPoolExecutor(most) as pool:
        return [view for views in pool.map(look, places) for view in views]


def ask(execute: Sequence[str], process: str, number: str) -> list[ServiceView]:
    """The services in a running container, as told by its image's health command, which `execute` runs there.

    Args:
      execute: a command that runs another one in the container.
      process: a role, or `worker`.
      number: which one, for the names of its services.
    """
    try:
        answer = json.loads(output([*execute, "python", "-m", f"zerobeast.services.{process}", "health", "--json"]))
        pages = [service["page"] for service in answer["services"]]
        found = dict(zip(HOSTED[process], pages, strict=True))
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        return unreachable(process, number, f"cannot be asked: {error}")
    return [
        view
        for role, page in found.items()
        for view in ([ServiceView(f"{role} {number}", role, page)] if page else unreachable(role, number, "no answer"))
    ]


def unreachable(process: str, number: str, note: str, code: int | None = None) -> list[ServiceView]:
    """The services of a process that has ended, has not started or does not answer, and why."""
    return [
        ServiceView(f"{role} {number}", role, silent_s=UNREACHABLE, code=code, note=note[:LAST_LINE])
        for role in HOSTED[process]
    ]


def last_words(logs: Sequence[str]) -> str:
    """The last line of a container's log, which says why it ended; `logs` is the command that prints it."""
    try:
        lines = output(logs, errors=True).splitlines()
    except ConfigError as error:
        return str(error)
    return lines[-1] if lines else ""


def output(command: Sequence[str], *, errors: bool = False) -> str:
    """What a command prints; with `errors`, on standard error too.

    Raises:
      ConfigError: it is not installed, does not answer in time, or fails without printing anything.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False)
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]} is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(command[:3])} did not answer in {ANSWER_LIMIT_S:.0f} s") from error
    if done.returncode and not done.stdout:
        why = done.stderr.strip().rpartition("\n")[2]  # kubectl says what it tried first, and the reason last
        raise ConfigError(f"{' '.join(command[:3])}: {why[:LAST_LINE]}")
    return done.stdout + (done.stderr if errors else "")
