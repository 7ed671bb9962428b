"""Break the network of a run, one fault on one plane at a time, and overload it."""

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from zerobeast.common.errors import BeastError
from zerobeast.common.process.terminal import write
from zerobeast_tools.chaos import network_faults, network_load, network_loss, network_names, trial_table
from zerobeast_tools.chaos.network_faults import NetworkFault, NetworkTrial
from zerobeast_tools.chaos.network_run import PLANES, ProxiedRun

EXPLANATION = """Faults, for --only: {faults}.
Exit code 0: every guarantee held; 1: one did not."""

#: tries something on one run in a folder of its own
Experiment = Callable[[Path], Iterator[NetworkTrial]]


def main(argv: list[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(argv)
    if not options.inside:
        if not (why := network_loss.explain_missing()):
            network_loss.enter_namespace([sys.executable, "-P", "-m", "zerobeast", "chaos", "network", *argv])
        write(f"packet loss is skipped: {why}")
    trials = []
    for fault, experiment in experiments(options.only, options.times, options.seed, lose_packets=options.inside):
        for trial in _try_experiment(fault, experiment):
            trials.append(trial)
            name = ": ".join(filter(None, [trial.plane, trial.fault]))
            back = "" if trial.recovery_s is None else f", {trial.recovery_s:.1f} s"
            write(f"{name}: {trial.trouble or 'held'}{back}")
    rows = trial_table.network_rows(trials)
    write(trial_table.markdown(rows), end="")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(trial.trouble for trial in trials))


def _try_experiment(fault: str, experiment: Experiment) -> Iterator[NetworkTrial]:
    with tempfile.TemporaryDirectory(prefix="beast-") as folder:
        try:
            yield from experiment(Path(folder))
        except BeastError as error:
            yield NetworkTrial(fault, math.inf, trouble=str(error))


def experiments(only: str, times: int, seed: int, *, lose_packets: bool) -> Iterator[tuple[str, Experiment]]:
    """Yield everything that there is to try, by name.

    Args:
      only: text that the name of a fault has to contain.
      times: how often to try each.
      seed: of the moments at which faults happen.
      lose_packets: whether to lose packets as well, which not every machine can do.
    """
    chance = random.Random(seed)  # noqa: S311 - a moment, not a secret
    for fault in network_faults.list_faults() + (network_loss.list_faults() if lose_packets else []):
        if planes := [plane for plane in PLANES if only in f"{plane}: {fault.name}"]:
            yield fault.name, partial(_run_on_planes, fault=fault, planes=planes * times, chance=chance)
    others: dict[str, Experiment] = {"names": network_names.trials}
    others |= {name: partial(_run_trial, trial=trial) for name, trial in network_load.TRIALS.items()}
    yield from [entry for entry in others.items() if only in entry[0]] * times


def _run_trial(folder: Path, trial: Callable[[Path], NetworkTrial]) -> Iterator[NetworkTrial]:
    yield trial(folder)


def _run_on_planes(
    folder: Path, fault: NetworkFault, planes: Sequence[str], chance: random.Random
) -> Iterator[NetworkTrial]:
    with ProxiedRun(fault.flags, folder) as run:
        for plane in planes:
            yield network_faults.compare_balance(run, network_faults.attempt(run, plane, fault, chance))


def _parser() -> argparse.ArgumentParser:
    faults = [fault.name for fault in network_faults.list_faults() + network_loss.list_faults()]
    parser = argparse.ArgumentParser(
        prog="beast chaos network",
        description=__doc__,
        epilog=EXPLANATION.format(faults=", ".join(map(repr, [*faults, "names", *network_load.TRIALS]))),
        allow_abbrev=False,
    )
    parser.add_argument("--times", type=int, default=3, help="number of trials of each fault; default %(default)s")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the times at which faults happen; default %(default)s"
    )
    parser.add_argument("--only", default="", help="faults whose name holds this, after that of the plane: 'weights: '")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(network_loss.INSIDE_FLAG, action="store_true", help=argparse.SUPPRESS)
    return parser
