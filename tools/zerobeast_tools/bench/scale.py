"""Check that more actors never slow a run down: 1, 2, 4, ... actors with environments that cost no CPU."""

from functools import partial

from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.bench.constant_envserver import ENV
from zerobeast_tools.bench.figures import STEPS_S, Goal, figure
from zerobeast_tools.bench.options import emit_figures, parse_options
from zerobeast_tools.throwaway_run import ThrowawayRun

MAX_ACTORS = 64
FLAT_GOAL = Goal(">=", 0.8)  #: fraction of the best rate; to fall below it with more actors is a collapse


def main(argv: list[str]) -> int:
    """`beast bench scale`."""
    own = ("--env", ENV.env_id, "--local.placement", "serve")  # the env-server is the only one that has it
    options, _, flags = parse_options("scale", __doc__, ["--preset", "classic", *argv, *own], seconds=10.0, warmup=5.0)
    rates: dict[int, float] = {}
    modules = {"envserver": "zerobeast_tools.bench.constant_envserver"}
    with private_folder() as folder, ThrowawayRun(flags, folder, modules=modules) as run:
        run.start("learner")
        run.start("envserver")
        run.start("broker")
        for count in (1 << power for power in range(MAX_ACTORS.bit_length())):
            for _ in range(count - sum(child.spec.role == "actor" for child in run.children)):
                run.start("actor")
            # starting them costs far more than what is measured
            run.wait_for(partial(_take_part, run, count), f"{count} actors did not all take part")
            rates[count] = run.rate(options.warmup, options.seconds)
    peak = max(rates, key=lambda count: rates[count])
    left = min(rate for count, rate in rates.items() if count >= peak) / rates[peak]
    figures = [figure(f"actors: {count}", rate, STEPS_S) for count, rate in rates.items()]
    figures.append(figure(f"1 to {MAX_ACTORS} actors: left of the best rate", left, "of it", FLAT_GOAL))
    emit_figures(figures, options.json, rates=rates)
    return 0


def _take_part(run: ThrowawayRun, count: int) -> bool:
    return [page.get("agent_steps", 0) > 0 for page in run.pages("actor")] == [True] * count
