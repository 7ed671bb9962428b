"""The containers of a compose project, each queried with the health command of its image.

Pages are not published to the host, and containers come and go with `--scale`: Docker itself knows them best.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.health.views import ServiceView
from zerobeast.common.process.roles import PROCESSES
from zerobeast.discovery.containers import LAST_LINE, ask, gather, last_words, output, unreachable


def services_of(project: Sequence[str] = ()) -> list[ServiceView]:
    """One view for every service in the containers of the project in this folder.

    Args:
      project: flags for `docker compose` that name another project.

    Raises:
      ConfigError: Docker cannot be asked, or knows no such project.
    """
    listing = output(["docker", "compose", *project, "ps", "--all", "--format", "json"])
    containers = [entry for entry in _entries(listing) if entry.get("Service") in PROCESSES]
    if not containers:
        raise ConfigError("no container of a compose project here: `docker compose up` starts one")
    containers.sort(key=lambda entry: (str(entry["Service"]), str(entry["Name"])))
    return gather(_views, containers)


def _entries(listing: str) -> list[dict[str, Any]]:
    """Compose prints one list, or one object a line, depending on its version."""
    try:
        if listing.lstrip().startswith("["):
            return list(json.loads(listing))
        return [json.loads(line) for line in listing.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"docker compose ps: expected JSON, got {listing[:LAST_LINE]!r}") from error


def _views(entry: dict[str, Any]) -> list[ServiceView]:
    process, container = str(entry["Service"]), str(entry["Name"])
    number = container.rpartition("-")[2]
    if entry.get("State") != "running":
        words = last_words(["docker", "logs", "--tail", "1", container])
        return unreachable(process, number, words, entry.get("ExitCode"))
    return ask(["docker", "exec", container], process, number)
