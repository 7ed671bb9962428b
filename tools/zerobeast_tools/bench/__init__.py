"""measure this machine's limit, the training rate compared with it, and the cost of transport"""

from functools import partial

from zerobeast import commands

COMMANDS = {
    "all": "every benchmark below one after the other, in one table with the goals",
    "limit": "environment, inference and training alone on one core, and what they imply",
    "train": "the steady rate of the real system, as a ratio to that limit",
    "compare": "runs with different settings, or of two commits, taking turns",
    "peers": "the same work done by other packages and by this one, one after the other",
    "digits": "whether this tree and another commit learn the same numbers",
    "stale": "learning from old policies and reused batches, in one process per seed",
    "latency": "the training rate with added network latency to the broker",
    "profile": "CPU time of a training run by kind of code; needs perf",
    "keys": "cost of encryption: the same run over tcp with and without keys",
    "scale": "1 to 64 actors on environments that cost nothing",
    "memory": "memory of every process over a long run",
    "broker": "inference plane: the broker without a model, with two client processes",
    "steps": "steps plane: a round trip to an env-server, compared with a ping-pong in C",
    "remote": "RemoteVectorEnv compared with gymnasium's AsyncVectorEnv",
    "rollouts": "rollouts plane: bytes a second, compared with a plain tcp stream",
    "replay": "a replay on disk: inserts and draws compared with memory bandwidth, bytes per stored step",
    "episodic": "an episodic memory: how well it ranks what is rare, and what it costs",
    "weights": "weights plane: from publication until eight subscribers have the version",
}
HELP = f"""beast bench: {__doc__}

{{commands}}

All have --help and write their result with --json FILE as well. limit, train, compare, profile,
latency, keys, scale, memory and stale take the flags of `beast train`, such as --env and --net.torso."""


def main(argv: list[str]) -> int:
    """Run one benchmark; returns the exit code."""
    return commands.run("beast bench", HELP, COMMANDS, argv, partial(commands.run_module, __name__))
