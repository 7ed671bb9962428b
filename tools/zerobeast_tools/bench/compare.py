"""Compare the training speed of different settings, or of two commits, on this machine.

The speed of a shared machine varies by more than the effect of most settings, so two consecutive runs cannot be
compared. Here the runs take turns, one at a time and back and forth (A B B A), so that a slowdown of the machine
affects all of them.
"""

import argparse
import math
import shlex
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from statistics import fmean, median
from typing import Any

from zerobeast_tools.bench.checkout import HERE, TreeRun, checkout, training_of
from zerobeast_tools.bench.limit import mean
from zerobeast_tools.bench.options import emit, numeric_parser
from zerobeast_tools.bench.train import SETTLING_S, TURN_S, Training, watch_rate
from zerobeast_tools.throwaway_run import ThrowawayRun, load_settings, training

PAIRS = 5
GATE = 0.97  #: what a ratio of rates may be, since pairs of one commit with itself differ by as much on a quiet machine
SCATTER = 2 * (1 - GATE)  #: of pairs without the lowest and the highest, above which they decide nothing


def main(argv: list[str]) -> int:
    """`beast bench compare`.

    Raises:
      ConfigError: a setting is wrong.
      BeastError: a run does not train.
    """
    parser = numeric_parser("compare", __doc__, seconds=40.0, warmup=5.0)
    other = parser.add_mutually_exclusive_group(required=True)
    meaning = "settings to add, such as --against='--actor.env_groups 3'; may be repeated"
    other.add_argument("--against", action="append", metavar="'FLAGS'", help=meaning)
    gate = f"fail if the median ratio of at least {PAIRS} pairs is below {GATE}"
    other.add_argument("--checkout", metavar="COMMIT", help=f"another commit of this repository; {gate}")
    options, flags = parser.parse_known_args(argv)
    if options.checkout:
        return _with_commit(options, flags)
    variants = [flags, *([*flags, *shlex.split(more)] for more in options.against)]
    configs = [load_settings(variant) for variant in variants]  # a wrong setting fails here, before anything runs
    seen = take_turns(map(training, variants), options.warmup, options.seconds)
    first = fmean(run.rate for run in seen[0])
    result = [_summary(flags, runs, first) for flags, runs in zip(variants, seen, strict=True)]
    title = f"{configs[0].env.id}, agent steps a second, ratio to the first; CPU of each agent step; mean policy lag"
    emit(result, "\n".join([title, *map(_line, result)]), options.json)
    return 0


def _with_commit(options: argparse.Namespace, flags: list[str]) -> int:
    """Pairs of this tree and of another commit; returns 1 if this one is slower, or the pairs do not show it."""
    load_settings(flags)  # a wrong setting fails here, before anything runs
    seconds = max(options.seconds, PAIRS * TURN_S)
    with checkout(options.checkout) as tree:
        runs = [training_of(HERE, flags), training_of(tree, flags)]
        ours, theirs = take_turns(runs, options.warmup, seconds)
    pairs = [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]
    result = {
        "flags": shlex.join(flags),
        "commit": options.checkout,
        "rates": [[run.rate for run in seen] for seen in (ours, theirs)],
        "pairs": pairs,
        "ratio": median(pairs),
        "scatter": scatter_of(pairs),
        "met": median(pairs) >= GATE and scatter_of(pairs) <= SCATTER,
    }
    rates = (f"{median(run.rate for run in seen):.0f}" for seen in (ours, theirs))
    shown = " ".join(f"{pair:.3f}" for pair in pairs)
    undecided = (
        f"undecided: pairs scatter by {result['scatter']:.2f}, expected at most {SCATTER:.2f} on a quiet machine"
    )
    verdict = "as fast" if result["met"] else undecided if result["scatter"] > SCATTER else "slower"
    text = f"agent steps a second here and at {options.checkout}: {' and '.join(rates)}\nratio {result['ratio']:.3f}"
    emit(result, f"{text} ({verdict}; at least {GATE}), pairs {shown}", options.json)
    return 0 if result["met"] else 1


def scatter_of(pairs: Sequence[float]) -> float:
    """How far ratios are apart, without the lowest and the highest, in shares of their median."""
    inner = sorted(pairs)[1:-1]
    return (inner[-1] - inner[0]) / median(pairs)


def take_turns(
    runs: Iterable[AbstractContextManager[ThrowawayRun | TreeRun]], warmup_s: float, seconds: float
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
    entered: list[tuple[ThrowawayRun | TreeRun, list[Training]]] = []
    with ExitStack() as stack:
        for each in runs:
            entered.append((stack.enter_context(each), []))
            time.sleep(warmup_s)
            entered[-1][0].freeze_all()
        for turn in range(turns):
            for run, seen in entered[:: -1 if turn % 2 else 1]:
                run.thaw_all()
                time.sleep(SETTLING_S)
                seen.append(watch_rate(run, seconds / turns))
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
