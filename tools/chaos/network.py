"""`beast chaos network`: breaks the network under a run, one fault on one plane at a time, and overloads it."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.runtime.roles import SERVERS
from zerobeast.tools.chaos import network_faults, network_load, network_loss, network_names
from zerobeast.tools.chaos.network_faults import NetworkFault, NetworkTrial
from zerobeast.tools.chaos.network_run import PLANES, SMALL, START_LIMIT_S, ProxiedRun
from zerobeast.tools.chaos.verdict import in_seconds

EXPLANATION = """Faults, as --only finds them: {faults}.
Exit code 0: every promise held; 1: one broke."""

#: what is tried with one run in a folder of its own
Experiment = Callable[[Path], Iterator[NetworkTrial]]


class TableRow(NamedTuple):
    """What became of one fault, over all times that it was tried."""

    fault: str
    tried: int
    recovery: str  #: median and worst, seconds
    lost: str  #: acknowledged rollouts that were never learned from, and rollouts in progress that began anew
    verdict: str


def main(argv: list[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(argv)
    if not options.inside:
        if not (why := network_loss.missing()):
            network_loss.enter([sys.executable, "-P", "-m", "zerobeast", "chaos", "network", *argv])
        sys.stdout.write(f"no packets are lost, since that cannot be done here: {why}\n")
    trials = []
    for experiment in experiments(options.only, options.times, options.seed, lose_packets=options.inside):
        with tempfile.TemporaryDirectory(prefix="beast-") as folder:
            for trial in experiment(Path(folder)):
                trials.append(trial)
                sys.stdout.write(f"{trial.fault}: {trial.trouble or 'held'}, {in_seconds(trial.recovery_s)}\n")
                sys.stdout.flush()
    rows = summary(trials)
    sys.stdout.write(table(rows))
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")
    return int(any(trial.trouble for trial in trials))


def experiments(only: str, times: int, seed: int, *, lose_packets: bool) -> Iterator[Experiment]:
    """All that there is to try.

    Args:
      only: what the name of a fault has to hold.
      times: how often to try each.
      seed: of the moments at which faults happen.
      lose_packets: on a machine where that can be done.
    """
    chance = random.Random(seed)  # noqa: S311 - a moment, not a secret
    faults = network_faults.faults() | (network_loss.faults() if lose_packets else {})
    for fault in faults.values():
        if planes := [plane for plane in PLANES if only in f"{plane}: {fault.name}"]:
            yield partial(_proxies, fault=fault, planes=planes * times, chance=chance)
    others: list[Experiment] = [_names] if only in "names" else []
    others += [partial(_load, trial=trial) for name, trial in network_load.TRIALS.items() if only in name]
    yield from others * times


def summary(trials: Sequence[NetworkTrial]) -> list[TableRow]:
    """One row for each fault, whichever plane it happened to."""
    by_fault: dict[str, list[NetworkTrial]] = {}
    for trial in trials:
        plane, _, fault = trial.fault.partition(": ")
        by_fault.setdefault(fault if plane in PLANES else trial.fault, []).append(trial)
    return [_row(fault, found) for fault, found in by_fault.items()]


def table(rows: Sequence[TableRow]) -> str:
    """In Markdown."""
    heads = ("fault", "times tried", "recovery (median, worst)", "rollouts lost", "verdict")
    lines = [heads, ("---",) * len(heads), *([str(value) for value in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(fault: str, trials: list[NetworkTrial]) -> TableRow:
    times = sorted(trial.recovery_s for trial in trials if trial.recovery_s is not None)
    recovery = f"{in_seconds(statistics.median(times))}, {in_seconds(times[-1])}" if times else "nothing to recover"
    troubles = [trial.trouble for trial in trials if trial.trouble]
    lost, cut = sum(trial.lost for trial in trials), sum(trial.cut for trial in trials)
    verdict = f"{len(troubles)} times: {'; '.join(dict.fromkeys(troubles))}" if troubles else "held"
    return TableRow(fault, len(trials), recovery, f"{lost}; {cut} in progress" if cut else str(lost), verdict)


def _proxies(folder: Path, fault: NetworkFault, planes: Sequence[str], chance: random.Random) -> Iterator[NetworkTrial]:
    with ProxiedRun(fault.flags, folder) as run:
        run.until(lambda: run.version > network_faults.UNDER_WAY, START_LIMIT_S)
        for plane in planes:
            yield network_faults.settled(run, network_faults.attempt(run, plane, fault, chance))


def _names(folder: Path) -> Iterator[NetworkTrial]:
    with network_names.NamedRun(SMALL, folder) as run:
        run.until(lambda: run.version > network_faults.UNDER_WAY, START_LIMIT_S)
        yield network_names.forget(run)
        for role in SERVERS:
            yield network_names.move(run, role)


def _load(folder: Path, trial: Callable[[Path], NetworkTrial]) -> Iterator[NetworkTrial]:
    yield trial(folder)


def _parser() -> argparse.ArgumentParser:
    names = [*network_faults.faults(), *network_loss.faults(), "names", *network_load.TRIALS]
    parser = argparse.ArgumentParser(
        prog="beast chaos network",
        description=__doc__,
        epilog=EXPLANATION.format(faults=", ".join(map(repr, names))),
        allow_abbrev=False,
    )
    parser.add_argument("--times", type=int, default=3, help="how often to try each fault; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which they happen; default %(default)s")
    parser.add_argument("--only", default="", help="faults whose name holds this, after that of the plane: 'weights: '")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    parser.add_argument(network_loss.INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser
