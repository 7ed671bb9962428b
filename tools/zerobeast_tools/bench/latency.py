"""Measure the training rate with added network latency between actor and broker."""

from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.bench.figures import STEPS_S, Goal, figure
from zerobeast_tools.bench.options import emit_figures, parse_options
from zerobeast_tools.chaos.proxy import Proxy
from zerobeast_tools.throwaway_run import ThrowawayRun

#: added to the round trip -> share of the rate that should be left
ADDED_MS = {5.0: Goal(">=", 0.9, of_ratio=True), 20.0: Goal(">=", 0.7, of_ratio=True)}
SOCKETS = (0, 1)  #: of a broker's endpoint


def main(argv: list[str]) -> int:
    """`beast bench latency`."""
    options, config, flags = parse_options("latency", __doc__, argv, seconds=30.0, warmup=10.0)
    rates = {added: training_rate(flags, added, options.warmup, options.seconds) for added in (0.0, *ADDED_MS)}
    figures = [
        figure(f"{added:g} ms added to each round trip", rate, STEPS_S, ADDED_MS.get(added), rates[0.0])
        for added, rate in rates.items()
    ]
    groups = f"{config.env.id}, {config.actor.env_groups} env groups of {config.actor.envs_per_group}"
    emit_figures(figures, options.json, groups, rates={f"{added:g} ms": rate for added, rate in rates.items()})
    return 0


def training_rate(flags: list[str], added_ms: float, warmup_s: float, seconds: float) -> float:
    """Agent steps a second with a slow proxy between actor and broker; a run without delay uses the same proxy."""
    with private_folder() as folder, ThrowawayRun(flags, folder) as run:
        run.start("learner")
        run.start("envserver")
        run.start("broker", "--broker.endpoint", f"ipc://{folder}/real")
        with Proxy(f"ipc://{folder}/broker-0", f"ipc://{folder}/real", SOCKETS, delay_s=added_ms / 2000):
            run.start("actor")
            return run.rate(warmup_s, seconds)
