"""Which settings train faster on this machine: runs of each that take turns, all others standing still meanwhile.

A shared machine changes its speed by more than most settings do, so two runs one after the other cannot be compared.
"""

import math
import shlex
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from statistics import fmean
from typing import Any

from zerobeast.tools.bench.limit import mean
from zerobeast.tools.bench.options import emit, numeric
from zerobeast.tools.bench.train import SETTLING_S, TURN_S, Training, watch
from zerobeast.tools.throwaway_run import ThrowawayRun, settings, training


def main(argv: list[str]) -> int:
    """`beast bench compare`.

    Raises:
      ConfigError: a setting is wrong.
      BeastError: a run does not train.
    """
    parser = numeric("compare", __doc__, seconds=40.0, warmup=5.0)
    meaning = "settings to add, as in --against='--actor.env_groups 3'; may be given repeatedly"
    parser.add_argument("--against", action="append", required=True, metavar="'FLAGS'", help=meaning)
    options, flags = parser.parse_known_args(argv)
    variants = [flags, *([*flags, *shlex.split(more)] for more in options.against)]
    configs = [settings(variant) for variant in variants]  # a wrong setting fails here, before anything runs
    seen = take_turns(map(training, variants), options.warmup, options.seconds)
    first = fmean(run.rate for run in seen[0])
    result = [_summary(flags, runs, first) for flags, runs in zip(variants, seen, strict=True)]
    title = f"{configs[0].env.id}, agent steps a second, ratio to the first; CPU of each agent step; mean policy lag"
    emit(result, "\n".join([title, *map(_line, result)]), options.json)
    return 0


def take_turns(
    runs: Iterable[AbstractContextManager[ThrowawayRun]], warmup_s: float, seconds: float
) -> list[list[Training]]:
    """Measure runs in turns; returns the measurements of each run, one per turn.

    Args:
      runs: entered here, and left at the end.
      warmup_s: seconds of training before anything is measured.
      seconds: to measure each run, in turns of at most `TURN_S`.

    Raises:
      BeastError: a run does not train.
    """
    turns = max(1, round(seconds / TURN_S))
    entered: list[tuple[ThrowawayRun, list[Training]]] = []
    with ExitStack() as stack:
        for each in runs:
            entered.append((stack.enter_context(each), []))
            time.sleep(warmup_s)
            entered[-1][0].freeze_all()
        for _ in range(turns):
            for run, seen in entered:
                run.thaw_all()
                time.sleep(SETTLING_S)
                seen.append(watch(run, seconds / turns))
                run.freeze_all()
    return [seen for _, seen in entered]


def _summary(flags: list[str], runs: list[Training], first: float) -> dict[str, Any]:
    rates = [run.rate for run in runs]
    return {
        "flags": shlex.join(flags),
        "rates": rates,
        "rate": fmean(rates),
        "ratio": fmean(rates) / first,
        "cpu_s_per_s": mean([run.cpu_s for run in runs]),
        "policy_lag_mean": runs[-1].pages["learner"].get("policy_lag_mean"),
    }


def _line(result: dict[str, Any]) -> str:
    used, lag = result["cpu_s_per_s"], result["policy_lag_mean"]
    rate = result["rate"] or math.inf
    costs = ", ".join(f"{role} {1e6 * share / rate:.0f}" for role, share in used.items())
    return (
        f"{result['rate']:7.0f} {result['ratio']:5.2f}  {sum(used.values()):.2f} cores ({costs} us)  "
        f"lag {'-' if lag is None else f'{lag:.1f}'}  {result['flags'] or 'default settings'}"
    )
