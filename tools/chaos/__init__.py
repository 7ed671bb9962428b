"""`beast chaos`: causes faults on purpose, watches what becomes of them, and says whether the promises held."""

from __future__ import annotations

from functools import partial

from zerobeast import commands

COMMANDS = {
    "search": "draw small configurations and faults, and look for a run that stands still",
    "soak": "train, kill and stop services at random, and settle the accounts at the end",
    "network": "cut, stall, slow down and overload every plane, and move names",
    "fuzz": "send hostile messages to every plane and health port while a small run trains",
}
HELP = f"""{__doc__}

{{commands}}

Without a command: soak. All explain themselves with --help. Exit code 0: every promise held; 1: one broke."""


def main(argv: list[str]) -> int:
    """Run one of the commands; returns the exit code."""
    named = bool(argv) and (not argv[0].startswith("-") or argv[0] in ("-h", "--help"))
    argv = argv if named else ["soak", *argv]
    return commands.run("beast chaos", HELP, COMMANDS, argv, partial(commands.run_module, __name__))
