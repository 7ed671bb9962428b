"""A service in other surroundings: `python -m zerobeast_tools.chaos.network_service actor` and its flags.

--hosts FILE      names are looked up in this file, which may change: see `write_hosts`; lookups are noted beside it
--pause SECONDS   every update (learner) or step (env-server) takes that much longer
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.service.entry import main

NOTES = ".lookups"  #: suffix of the file of lookups, beside the file of names
#: role -> the method that `--pause` slows down
PARTS = {
    "learner": ("zerobeast.services.learner.update", "Trainer", "step"),
    "envserver": ("zerobeast.services.envserver.gymnasium_backend", "NativeVectorEnv", "finish_step"),
}


def write_hosts(file: Path, addresses: Mapping[str, Sequence[str]], delay_s: float = 0.0) -> None:
    """Set what names resolve to from now on.

    Args:
      file: of `--hosts`.
      addresses: of each name, empty if it does not resolve; other names resolve as usual.
      delay_s: how long each lookup of these names takes.
    """
    write_atomically(file, json.dumps({"addresses": addresses, "delay_s": delay_s}), durable=False)


def lookups(file: Path) -> list[tuple[float, int, str]]:
    """The lookups of these names so far: wall-clock time, process and name."""
    lines = file.with_suffix(NOTES).read_text().splitlines()
    return [(float(at), int(process), name) for at, process, name in map(str.split, lines)]


def _look_up_in(file: Path) -> None:
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        hosts = json.loads(file.read_text())
        if host not in hosts["addresses"]:
            return real(host, port, *args, **kwargs)
        with file.with_suffix(NOTES).open("a") as notes:
            notes.write(f"{time.time()} {os.getpid()} {host}\n")
        time.sleep(hosts["delay_s"])
        if not (found := hosts["addresses"][host]):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for address in found for entry in real(address, port, *args, **kwargs)]

    socket.getaddrinfo = look_up


def _pause(role: str, seconds: float) -> None:
    module, owner, name = PARTS[role]
    part = getattr(import_module(module), owner)
    call: Callable[..., Any] = getattr(part, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    setattr(part, name, slow)


def run_service(argv: list[str]) -> int:
    """Run the service."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("role")
    parser.add_argument("--hosts", type=Path)
    parser.add_argument("--pause", type=float, default=0.0)
    options, flags = parser.parse_known_args(argv)
    if options.hosts:
        _look_up_in(options.hosts)
    if options.pause:
        _pause(options.role, options.pause)
    return main(options.role, flags)


if __name__ == "__main__":
    sys.exit(run_service(sys.argv[1:]))
