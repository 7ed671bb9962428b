"""How much of the training rate is left when actor and broker are far from each other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from zerobeast.tools.bench.options import emit, parse
from zerobeast.tools.chaos.proxy import Proxy
from zerobeast.tools.throwaway_run import ThrowawayRun

ADDED_MS = {5.0: 0.9, 20.0: 0.7}  #: added to the round trip -> share of the rate that should be left
SOCKETS = (0, 1)  #: of a broker's endpoint


def main(argv: list[str]) -> int:
    """`beast bench latency`."""
    options, config, flags = parse("latency", argv, seconds=30.0, warmup=10.0)
    rates = {added: training_rate(flags, added, options.warmup, options.seconds) for added in (0.0, *ADDED_MS)}
    groups = config.actor.env_groups
    lines = [f"{config.env.id}, {groups} env groups of {config.actor.envs_per_group}, agent steps a second"]
    for added, rate in rates.items():
        goal = f", goal {ADDED_MS[added]:g}" if added in ADDED_MS else ""
        lines.append(f"  {added:4.0f} ms added to each round trip {rate:9.0f}   {rate / rates[0.0]:.2f}{goal}")
    measured = {f"{added:g} ms": rate for added, rate in rates.items()}
    result = {"env_id": config.env.id, "env_groups": groups, "rates": measured}
    emit(result, "\n".join(lines), options.json)
    return 0


def training_rate(flags: list[str], added_ms: float, warmup_s: float, seconds: float) -> float:
    """Agent steps a second with a slow proxy between actor and broker; without delay, through the same forwarder."""
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as name:
        folder = Path(name)
        with ThrowawayRun(flags, folder) as run:
            run.start("learner")
            run.start("envserver")
            run.start("broker", "--broker.endpoint", f"ipc://{folder}/real")
            with Proxy(f"ipc://{folder}/b0", f"ipc://{folder}/real", SOCKETS, delay_s=added_ms / 2000):
                run.start("actor")
                return run.rate(warmup_s, seconds)
