"""Cost of encryption: the same training twice over tcp, without keys and with keys, in turns.

One run is suspended while the other trains, because the speed of a shared machine changes from minute to minute.
"""

from statistics import fmean

from zerobeast.common.transport import make_keys
from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.bench.compare import take_turns
from zerobeast_tools.bench.figures import STEPS_S, Goal, figure
from zerobeast_tools.bench.options import emit_figures, parse_options
from zerobeast_tools.throwaway_run import tcp_endpoints, training

GOAL = Goal(">=", 0.9, of_ratio=True)


def main(argv: list[str]) -> int:
    """`beast bench keys`."""
    options, config, flags = parse_options("keys", __doc__, argv, seconds=60.0, warmup=10.0)
    with private_folder() as folder:
        make_keys(folder / "keys")
        variants = {"without keys": flags, "with keys": [*flags, "--security.keys", f"{folder}/keys"]}
        runs = (training(variant, own=_over_tcp()) for variant in variants.values())
        seen = take_turns(runs, options.warmup, options.seconds)
    rates = {which: [turn.rate for turn in turns] for which, turns in zip(variants, seen, strict=True)}
    plain, encrypted = map(fmean, rates.values())
    turns = [f"{which}, each turn: " + ", ".join(f"{rate:.0f}" for rate in found) for which, found in rates.items()]
    what = f"{config.env.id} over tcp with keys, beside without"
    emit_figures([figure(what, encrypted, STEPS_S, GOAL, plain)], options.json, "\n".join(turns), rates=rates)
    return 0


def _over_tcp() -> list[str]:
    return [part for role, place in tcp_endpoints().items() for part in (f"--{role}.endpoint", place)]
