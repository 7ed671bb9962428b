"""The containers of a compose project, each asked by the health command that its image has.

Pages are not published to the host, and containers come and go with `--scale`: Docker itself knows them best.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.health.command import UNREACHABLE
from zerobeast.common.health.verdict import ROLES
from zerobeast.common.health.views import ServiceView

ANSWER_LIMIT_S = 20.0
AT_ONCE = 8
LAST_LINE = 200  #: characters of a log line that says why a container ended


def services_of(project: Sequence[str] = ()) -> list[ServiceView]:
    """One view for every container of the project in this folder.

    Args:
      project: flags for `docker compose` that name another one.

    Raises:
      ConfigError: Docker cannot be asked, or knows no such project.
    """
    listing = _run(["docker", "compose", *project, "ps", "--all", "--format", "json"])
    containers = [entry for entry in _entries(listing) if entry.get("Service") in ROLES]
    if not containers:
        raise ConfigError("no container of a compose project here: `docker compose up` starts one")
    containers.sort(key=lambda entry: (str(entry["Service"]), str(entry["Name"])))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(_view, containers))


def _entries(listing: str) -> list[dict[str, Any]]:
    """Compose prints one list, or one object a line, depending on its version."""
    try:
        if listing.lstrip().startswith("["):
            return list(json.loads(listing))
        return [json.loads(line) for line in listing.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"docker compose ps: expected JSON, got {listing[:LAST_LINE]!r}") from error


def _view(entry: dict[str, Any]) -> ServiceView:
    role, container = str(entry["Service"]), str(entry["Name"])
    name = f"{role} {container.rpartition('-')[2]}"
    if entry.get("State") != "running":
        return ServiceView(name, role, silent_s=UNREACHABLE, code=entry.get("ExitCode"), note=_last_words(container))
    try:
        answer = json.loads(
            _run(["docker", "exec", container, "python", "-m", f"zerobeast.services.{role}", "health", "--json"])
        )
        page = answer["services"][0]["page"]
    except (ConfigError, ValueError, KeyError, IndexError, TypeError) as error:
        return ServiceView(name, role, silent_s=UNREACHABLE, note=f"cannot be asked: {error}"[:LAST_LINE])
    return ServiceView(name, role, page) if page else ServiceView(name, role, silent_s=UNREACHABLE, note="no answer")


def _last_words(container: str) -> str:
    """The last line of a container's log, which says why it ended."""
    try:
        lines = _run(["docker", "logs", "--tail", "1", container], errors=True).splitlines()
    except ConfigError as error:
        return str(error)
    return lines[-1][:LAST_LINE] if lines else ""


def _run(command: list[str], *, errors: bool = False) -> str:
    """What a command prints.

    Raises:
      ConfigError: it is not there, does not answer in time, or fails without printing anything.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False)
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]} is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(command[:3])} did not answer in {ANSWER_LIMIT_S:.0f} s") from error
    if done.returncode and not done.stdout:
        raise ConfigError(f"{' '.join(command[:3])}: {' '.join(done.stderr.split())[:LAST_LINE]}")
    return done.stdout + (done.stderr if errors else "")
