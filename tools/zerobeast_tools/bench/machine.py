"""What a machine reaches with several algorithms and networks, within a budget of seconds.

It is meant for a machine that is lent for minutes, such as one with a GPU: runs follow one another in order of
importance, and the file is rewritten after each, so that it is complete whenever this command is killed. With the same
file, the next call measures what is missing in it, and then what has failed.
"""

import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.verdict import judge
from zerobeast.common.process.hardware import cpu_model, installed_memory_bytes
from zerobeast.common.process.roles import SERVICES
from zerobeast.common.process.signals import handle_signals
from zerobeast.common.process.terminal import write
from zerobeast.common.process.usage import cores
from zerobeast.plan.placement import placement_of
from zerobeast.plan.spaces import fetch_run_spec
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import pick_device, pick_dtype
from zerobeast_tools.bench.checkout import own_commit
from zerobeast_tools.bench.figures import STEPS_S, Figure, figure, per_second, table
from zerobeast_tools.bench.options import numeric_parser
from zerobeast_tools.bench.peers.catalogue import WORKS
from zerobeast_tools.bench.train import watch_rate
from zerobeast_tools.bench.waste import count_fates, waste_of
from zerobeast_tools.throwaway_run import load_settings, training
from zerobeast_tools.watched_run import WatchedRun

Record = dict[str, Any]  #: of an item: its measurements, or `error`, the sentence with which it has failed

PONG, CARTPOLE = ("--env", "PongNoFrameskip-v4"), ("--env", "CartPole-v1")
MANY_ACTORS, MANY_CORES = "Pong, 8 actors", 8  #: a run, and the cores without which it is left out
_MANY_FLAGS = "--local.actors 8 --local.env_servers 4 --actor.envs_per_group 32 --learner.batch_size 32"
#: flags of the runs, the most important first
RUNS = {
    "Pong": PONG,
    "Pong, deep network": (*PONG, "--net.torso", "deep"),
    MANY_ACTORS: (*PONG, *_MANY_FLAGS.split()),
    "Pong, DQN": WORKS["dqn"].flags,
    "HalfCheetah, SAC": WORKS["sac"].flags,
    "CartPole, R2D2": (*CARTPOLE, "--algo", "r2d2", "--r2d2.replay_min_size", "1000"),
    "Pong, PPO": (*PONG, "--algo", "ppo"),
    "CartPole": CARTPOLE,
    "CartPole, 4 actors": (*CARTPOLE, "--local.actors", "4"),
}
TORSOS = ("shallow", "deep")
ROWS = (16, 64, 256)  #: of a batch to act on
LATE_S = 30.0  #: for which an item may go on when the budget is spent
ACTING_S = 1.0  #: for which acting on a batch is measured, after as much time without measuring
PAGE_FIGURES = {
    "learner": ("device", "precision", "update_ms", "waiting_fraction", "policy_lag_mean"),
    "broker": ("batch_rows_mean", "busy_fraction"),
}


class Item(NamedTuple):
    """One measurement."""

    name: str
    measure: Callable[[], Record]
    seconds: float  #: that it takes, without the time to start and to end


def main(argv: list[str]) -> int:
    """`beast bench machine`; exit code 1 if an item has failed."""
    parser = numeric_parser("machine", __doc__, budget=300.0, seconds=12.0, warmup=8.0)
    parser.epilog = None
    options = parser.parse_args(argv)
    if options.json is None:
        parser.error("--json is missing, expected the file for the results")
    if not (0 < options.budget < math.inf and options.warmup >= 0 and options.seconds > 0):
        parser.error("expected numbers: --budget and --seconds above 0, --warmup 0 or more")
    items, here = list_items(options.warmup, options.seconds), describe_machine()
    found = run_items(items, options.json, options.budget, here)
    others = [name for name, record in found.items() if record.get("machine") != here]
    notes = [f"{name}: {record.get('error') or record.get('verdict', '')}" for name, record in found.items()]
    notes += [f"{name}: measured earlier, by another commit or on another machine" for name in others]
    notes += [f"{item.name}: not measured, because no time was left" for item in items if item.name not in found]
    write("\n".join([*(note for note in notes if not note.endswith(": ")), "", table(list_figures(found))]))
    return int(any("error" in record for record in found.values()))


def list_items(warmup_s: float, seconds: float) -> list[Item]:
    """The measurements of this machine, the most important first."""
    run_s, acting_s = warmup_s + seconds, 2 * ACTING_S * len(ROWS)
    items = [Item(name, partial(measure_run, flags, warmup_s, seconds), run_s) for name, flags in RUNS.items()]
    items += [Item(f"Acting, {torso} network", partial(measure_acting, torso), acting_s) for torso in TORSOS]
    return [item for item in items if item.name != MANY_ACTORS or cores() >= MANY_CORES]


def run_items(
    items: Sequence[Item], path: Path, budget_s: float, machine: Record, clock: Callable[[], float] = time.monotonic
) -> dict[str, Record]:
    """Measure what the file lacks, then what has failed, as long as it is expected to end within the budget.

    An item that is under way LATE_S after the budget is spent has failed.

    Args:
      items: in the order of measuring.
      path: of the file, which is rewritten after each item.
      budget_s: seconds that all items of this call may take.
      machine: what each record says of the machine.
      clock: returns the time in seconds.

    Returns:
      The records in the file, by item.

    Raises:
      ConfigError: the file cannot be written, or is not of this command.
    """
    records, begun, longest_s = _read_records(path), clock(), 0.0
    _write_records(path, records)  # if that is impossible, nothing is measured in vain
    for item in sorted(items, key=lambda item: item.name in records):  # what failed may fail again, after minutes
        start = clock()
        left_s = begun + budget_s - start
        fits = item.seconds + longest_s <= left_s
        if not fits or "error" not in records.get(item.name, {"error": ""}):
            continue
        write(item.name, sys.stderr)
        records[item.name] = record = {**_attempt(item, left_s), "machine": machine}
        if "error" not in record:
            longest_s = max(longest_s, clock() - start - item.seconds)
        try:
            _write_records(path, records)
        except BeastError:
            write(json.dumps({item.name: record}), sys.stderr)
            raise
    return records


def _attempt(item: Item, left_s: float) -> Record:
    """Its measurements, or why there are none."""
    try:
        with _time_limit(left_s + LATE_S):
            return item.measure()
    except BeastError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever is wrong with one item, the others are measured
        return {"error": repr(error)}


@contextmanager
def _time_limit(left_s: float) -> Iterator[None]:
    """End what this thread, the main one, does in this context by a BeastError once `left_s` seconds have passed."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise BeastError(f"it was still under way {LATE_S:g} s after the budget was spent")

    with handle_signals((signal.SIGALRM,), end):
        before = signal.setitimer(signal.ITIMER_REAL, left_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *before)


def _read_records(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    try:
        return {str(name): dict(record) for name, record in json.loads(path.read_text())["items"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--json {path}: expected a file that `beast bench machine` has written") from error


def _write_records(path: Path, records: dict[str, Record]) -> None:
    write_atomically(path, json.dumps({"items": records}, indent=2) + "\n", durable=True)


def describe_machine() -> Record:
    """What the figures depend on."""
    return {
        "commit": own_commit(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": cores(),
        "cpu": cpu_model(),
        "memory_bytes": installed_memory_bytes(),
    }


def measure_run(flags: Sequence[str], warmup_s: float, seconds: float) -> Record:
    """Train for a while: rate, what became of the rollouts, CPU time, and the main figures of learner and broker.

    Args:
      flags: settings of the run.
      warmup_s: seconds between the first update and the measurement.
      seconds: to measure.

    Raises:
      BeastError: the run does not train.
    """
    with training(flags) as run:
        # agent steps count as soon as they are in the replay, which an update follows once it is filled
        run.wait_for(lambda: _updates(run) > 0, f"there is no update; the logs are in {run.folder}")
        time.sleep(warmup_s)
        before, updates = count_fates(run), _updates(run)
        seen = watch_rate(run, seconds)
        if not (learned := seen.pages["learner"]["updates"] - updates):
            raise BeastError(f"no update in {seen.seconds:.0f} s")
        waste = waste_of(count_fates(run) - before, seen.rate, run.pages("actor"))
        views = [ServiceView(f"{role} {n}", role, page) for role in SERVICES for n, page in enumerate(run.pages(role))]
    pages = {role: seen.pages.get(role, {}) for role in PAGE_FIGURES}
    figures = {role: {name: pages[role].get(name) for name in names} for role, names in PAGE_FIGURES.items()}
    rates = {"seconds": seen.seconds, "updates": learned, **waste._asdict(), "cpu_cores": seen.cpu_s}
    return {"flags": shlex.join(flags), **rates, **figures, "verdict": judge(views).sentence}


def _updates(run: WatchedRun) -> int:
    return max((int(page.get("updates", 0)) for page in run.pages("learner")), default=0)


def measure_acting(torso: str) -> Record:
    """Act on batches of Pong as a broker does, frame stacks and copies to and from the device included.

    Args:
      torso: of the network.

    Raises:
      ConfigError: the device is missing.
    """
    config = load_settings([*PONG, "--net.torso", torso])
    spec, device = fetch_run_spec(config), pick_device(config.broker.device, "broker.device")
    assert spec is not None, "the placement is not serve, so the environment is made here"
    dtype = pick_dtype(config.broker.precision, device)
    torch.set_num_threads(placement_of(config).threads["broker.threads"])
    algorithm, most = make_algorithm(config, spec), max(ROWS)
    inference = Inference(algorithm, max_rows=most, device=device, dtype=dtype, seed=config.seed)
    inference.reserve(most)
    batches = {}
    for rows in ROWS:
        act = partial(act_once, inference, rows)
        per_second(act, ACTING_S)
        rate = per_second(act, ACTING_S)
        batches[str(rows)] = {"ms": 1000 * rows / rate, "rows_per_s": rate}
    return {"device": str(device), "precision": str(dtype).removeprefix("torch."), "batches": batches}


def act_once(inference: Inference, rows: int) -> int:
    """Act on a batch of this many rows, and wait for the answers; returns their number."""
    inference.batch.slots[:rows] = np.arange(rows)
    inference.submit(rows, with_cores=False)
    while not inference.done():
        pass
    return rows


def list_figures(records: dict[str, Record]) -> list[Figure]:
    """The main figures of all records that have some."""
    return [each for name, record in records.items() for each in _figures_of(name, record)]


def _figures_of(name: str, record: Record) -> Iterator[Figure]:
    if "rate" in record:
        yield figure(f"{name}: rate", record["rate"], STEPS_S)
        yield figure(f"{name}: learned from", record["learned_share"], "of the steps played")
    for rows, batch in record.get("batches", {}).items():
        yield figure(f"{name}, {rows} rows: rate", batch["rows_per_s"], "rows/s")
        yield figure(f"{name}, {rows} rows: time", batch["ms"], "ms")
