"""`beast chaos`: causes faults on purpose, watches what becomes of them, and says whether the promises held."""

from __future__ import annotations

import sys
from importlib import import_module

from zerobeast.common.runtime.suggest import suggestion

#: command -> module of this package whose `main(argv)` runs it, and what it does
COMMANDS = {
    "search": (
        "search",
        "draw small configurations and faults, and look for a run that stands still",
    ),
    "soak": (
        "soak",
        "train, kill and stop services at random, and settle the accounts at the end",
    ),
    "network": ("network", "cut, stall, slow down and overload every plane, and move names"),
    "fuzz": (
        "fuzz",
        "send hostile messages to every plane and health port while a small run trains",
    ),
}
HELP = f"""{__doc__}

{{commands}}

Without a command: soak. All explain themselves with --help. Exit code 0: every promise held; 1: one broke."""


def main(argv: list[str]) -> int:
    """Run one of them; returns the exit code."""
    if argv[:1] in (["-h"], ["--help"]):
        commands = "\n".join(f"beast chaos {name:<8} {meaning}" for name, (_, meaning) in COMMANDS.items())
        sys.stdout.write(HELP.format(commands=commands) + "\n")
        return 0
    name, rest = ("soak", argv) if not argv or argv[0].startswith("-") else (argv[0], argv[1:])
    if name not in COMMANDS:
        sys.stderr.write(f"beast chaos: unknown command {name!r}{suggestion(name, COMMANDS)}\n")
        return 2
    module, _ = COMMANDS[name]
    code: int = import_module(f"{__name__}.{module}").main(rest)
    return code
