"""Robustness of algorithms to policy_lag and batch reuse: learning curves with exact amounts of both.

The acting policy is always the same number of updates behind the learning policy, and every batch is used the same
number of times. With a replay, which has its own pace, the acting policy is the same number of batches behind. Each run
is one process with one thread and is bit-reproducible; runs are trained in parallel.
"""

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import sha256
from multiprocessing import active_children, get_context

from zerobeast.common.config.load import resolve_flags
from zerobeast.common.errors import TrainingDiverged
from zerobeast.common.process.terminal import write
from zerobeast.common.process.usage import cores
from zerobeast.common.settings import RunConfig, spec_of
from zerobeast.rl.nets.weights import flatten
from zerobeast.services.learner.episodes import RECENT_EPISODES, EpisodeStatistics
from zerobeast_tools.bench.in_process import InProcess
from zerobeast_tools.bench.options import SETTINGS, emit, numeric_parser
from zerobeast_tools.bench.processes import set_up_process
from zerobeast_tools.bench.stale_report import Curve, SeedRun, format_line, format_report, summarize_runs

#: whichever precision is fastest here, so that a run is the same on other machines
EXACT_FLAGS = ("--learner.precision", "float32", "--broker.precision", "float32")

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """`beast bench stale`.

    Raises:
      BeastError: a setting is wrong, or the environment cannot be made.
    """
    options, flags = _parse(argv)
    configs = [config for algo in options.algos for config in _configs(algo, options, flags)]
    runs = []
    for run in _run_all(configs, options.lag, options.goal):
        write(format_line(run), sys.stderr)
        runs.append(run)
    runs.sort(key=lambda run: (options.algos.index(run.algo), run.seed))
    result = {"argv": argv, "algos": summarize_runs(runs), "runs": [run._asdict() for run in runs]}
    emit(result, format_report(runs), options.json)
    return 0


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own options, and the settings of the runs."""
    parser = numeric_parser("stale", __doc__)
    parser.epilog = f"{SETTINGS} --seed is the first one."
    add = parser.add_argument
    add("--algos", type=_names, default=["impala", "impact"], help="algorithms, with commas; default impala,impact")
    add("--seeds", type=int, default=5, help="runs of each algorithm; default 5")
    add("--lag", type=int, default=8, help="updates between the acting and the learning policy; default 8")
    add("--uses", type=int, default=4, help="uses of each batch, for algorithms that keep batches; default 4")
    add("--goal", type=float, default=math.inf, help="mean return; report when it is reached")
    options, flags = parser.parse_known_args(argv)
    for name, least in (("seeds", 1), ("lag", 0), ("uses", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: expected at least {least}")
    return options, flags


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(text.split(",")))


def _configs(algo: str, options: argparse.Namespace, flags: list[str]) -> list[RunConfig]:
    """The settings of each seed: the algorithm's preset, then how batches are used, then what the user gives."""
    loaded = resolve_flags([*EXACT_FLAGS, *_reuse(algo, options.uses), *flags, "--algo", algo], os.environ)
    for note in loaded.notes:
        if not note.startswith(tuple(f"--{spec_of(name).name}." for name in options.algos)):
            log.warning("%s", note)
    first = loaded.config.seed
    return [loaded.config.model_copy(update={"seed": first + n}) for n in range(options.seeds)]


def _reuse(algo: str, uses: int) -> list[str]:
    """Flags for K uses of each of the newest K batches, if the algorithm keeps any."""
    spec = spec_of(algo)
    if "uses" not in spec.settings.model_fields:
        return []
    return [f"--{spec.name}.uses", str(uses), f"--{spec.name}.batches", str(uses)]


def _run_all(configs: Sequence[RunConfig], lag: int, goal: float) -> Iterator[SeedRun]:
    """Yield every run as it ends; as many run at once as there are cores."""
    at_once = max(1, min(int(cores()), len(configs)))
    with ProcessPoolExecutor(at_once, get_context("spawn"), initializer=set_up_process) as pool:
        try:
            for task in as_completed([pool.submit(train_seed, config, lag, goal) for config in configs]):
                yield task.result()
        except BaseException:  # the pool would otherwise wait for all of its runs to end
            for process in active_children():
                process.terminate()
            raise


def train_seed(config: RunConfig, lag: int, goal: float) -> SeedRun:
    """One run, to its last step or until its weights overflow.

    Raises:
      BeastError: the environment cannot be made, or the algorithm cannot learn it.
    """
    episodes, curve, diverged = EpisodeStatistics(), Curve(), False
    with InProcess(config, lag) as run:
        counters, start = run.trainer.counters, time.perf_counter()
        while run.trainer.steps_left and not diverged:
            try:
                run.learn(run.collect())
            except TrainingDiverged:
                diverged = True
            for value, length in run.episodes:
                episodes.add(value, int(length))
            if episodes.mean_return is not None and episodes.count >= RECENT_EPISODES:
                curve.append((counters.agent_steps, episodes.mean_return))
        rate = counters.agent_steps / (time.perf_counter() - start)
        weights = sha256(flatten(run.trainer.net).tobytes()).hexdigest()
    return SeedRun.of(config.algo, config.seed, curve, goal=goal, diverged=diverged, rate=rate, weights=weights)
