"""`beast bench`: how fast this machine could train, how fast it does, and what carrying messages costs."""

from __future__ import annotations

from functools import partial

from zerobeast import commands

COMMANDS = {
    "all": "every benchmark below one after the other, in one table beside the goals",
    "limit": "environment, inference and training alone on one core, and what they imply",
    "train": "the steady rate of the real system, as a ratio to that limit",
    "compare": "settings beside each other: a run of each, taking turns",
    "peers": "the same work done by public packages, one after the other, and by this one",
    "stale": "how algorithms stand old policies and old batches, in one process per seed",
    "curve": "learning curves of finished runs as a picture",
    "latency": "what is left of that rate when the broker is far away",
    "profile": "in which code the CPU time of a running training goes; needs perf",
    "keys": "what encryption costs: the same run over tcp without keys and with them",
    "scale": "1 to 64 actors on environments that cost nothing",
    "memory": "whether every process keeps its size over a long run",
    "broker": "inference plane: the broker without a model, asked by two processes",
    "steps": "steps plane: a round trip to an env-server, beside a ping-pong in C",
    "remote": "environments of an env-server in a script: RemoteVectorEnv beside gymnasium's AsyncVectorEnv",
    "rollouts": "rollouts plane: bytes a second, beside a bare tcp stream",
    "replay": "a replay on disk: inserts and draws beside memory bandwidth, bytes per stored step",
    "weights": "weights plane: from publishing to eight subscribers that have a version",
}
HELP = f"""{__doc__}

{{commands}}

All explain themselves with --help; all but curve write their result with --json FILE as well. limit, train, compare,
profile, latency, keys, scale, memory and stale take the flags of `beast train`, such as --env and --net.torso."""


def main(argv: list[str]) -> int:
    """Run one benchmark; returns the exit code."""
    return commands.run("beast bench", HELP, COMMANDS, argv, partial(commands.run_module, __name__))
