"""`beast bench`: how fast this machine could train, and how fast it does.

beast bench limit     each part alone on one thread: environment, inference, training; and what they imply
beast bench train     the steady rate of the real system, as a ratio to that limit
beast bench peers     the same work done by public packages, one after the other, and by the real system
beast bench curve     learning curves of finished runs as a picture
"""

from __future__ import annotations

import sys
from collections.abc import Callable

HELP = f"""{__doc__}
`limit` and `train` take the flags of `beast train` (such as --env and --net.torso); all explain themselves with
--help and all but `curve` take --json FILE."""


def main(argv: list[str]) -> int:
    """Run one benchmark; returns the exit code."""
    commands: dict[str, Callable[[list[str]], int]] = {
        "limit": _limit,
        "train": _train,
        "peers": _peers,
        "curve": _curve,
    }
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(HELP + "\n")
        return 0
    if argv[0] not in commands:
        sys.stderr.write(f"beast bench: unknown command {argv[0]!r}, expected {', '.join(commands)}\n")
        return 2
    return commands[argv[0]](argv[1:])


def _limit(argv: list[str]) -> int:
    from deploy.bench.limit import main as run

    return run(argv)


def _train(argv: list[str]) -> int:
    from deploy.bench.train import main as run

    return run(argv)


def _peers(argv: list[str]) -> int:
    from deploy.bench.peers import main as run

    return run(argv)


def _curve(argv: list[str]) -> int:
    from deploy.bench.curve import main as run

    return run(argv)
