"""measure this machine's limit, the training rate compared with it, and the cost of transport"""

from functools import partial

from zerobeast import commands

COMMANDS = {
    "all": "run all benchmarks below one after the other; one table with results and goals",
    "limit": "environment, inference and training alone on one core, and the resulting limit",
    "train": "steady training rate of the real system, relative to that limit",
    "compare": "training speed of different settings or of two commits, in alternating runs",
    "peers": "the same task with other packages and with this one, one after the other",
    "race": "wall time until a greedy score with other packages and with this one, one after the other",
    "digits": "check that this tree and another commit learn bit-identical weights",
    "stale": "learning curves with policy_lag and batch reuse, in one process per seed",
    "latency": "training rate with added network latency to the broker",
    "waste": "share of the played steps that are learned from, by placement and number of streams",
    "machine": "rates of several algorithms and networks within a budget of seconds",
    "profile": "CPU time of a training run by kind of code; needs perf",
    "keys": "cost of encryption: the same run over tcp with and without keys",
    "scale": "1 to 64 actors with environments that cost nothing",
    "memory": "memory of every process over a long run",
    "broker": "inference plane: the broker without a model, with two client processes",
    "steps": "steps plane: round trip to an env-server, compared with a ping-pong in C",
    "remote": "RemoteVectorEnv compared with gymnasium's AsyncVectorEnv",
    "rollouts": "rollouts plane: bytes per second, compared with a plain tcp stream",
    "replay": "replay on disk: inserts and samples compared with memory bandwidth, bytes per stored step",
    "episodic": "episodic memory: how well it ranks rare observations, and its cost",
    "weights": "weights plane: time from publication until eight subscribers have the version",
}
HELP = f"""beast bench: {__doc__}

{{commands}}

All have --help, and --json FILE to write the result to a file. limit, train, compare, profile,
latency, keys, scale, memory, waste and stale take the flags of `beast train`, such as --env and --net.torso."""


def main(argv: list[str]) -> int:
    """Run one benchmark; returns the exit code."""
    return commands.run_command("beast bench", HELP, COMMANDS, argv, partial(commands.run_module, __name__))
