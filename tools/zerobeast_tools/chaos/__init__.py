"""kill services, break the network or attack a run, and check every guarantee"""

from functools import partial

from zerobeast import commands

COMMANDS = {
    "search": "try random small configurations and faults, and look for a run that makes no progress",
    "soak": "train, kill and stop services at random, and account for every rollout at the end",
    "network": "cut, stall, slow down and overload every plane, and change the addresses of host names",
    "fuzz": "send hostile messages to every plane and health port while a small run trains",
}
HELP = f"""beast chaos: {__doc__}

{{commands}}

Without a command: soak. Every command has --help. Exit code 0: every guarantee held; 1: one did not."""


def main(argv: list[str]) -> int:
    """Run one of the commands; returns the exit code."""
    named = bool(argv) and (not argv[0].startswith("-") or argv[0] in ("-h", "--help"))
    argv = argv if named else ["soak", *argv]
    return commands.run_command("beast chaos", HELP, COMMANDS, argv, partial(commands.run_module, __name__))
