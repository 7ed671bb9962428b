"""Train with this package and with others until a greedy policy reaches a score, and compare the wall time.

The runs follow one another; nothing else should run at the same time. Ours is the first on each task, and the others
are stopped at three times its median time. Each finished run leaves a file in `--root`, and the same command goes on
from there. Each package has its own virtual environment, which is created when it is first needed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from zerobeast import commands
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast_tools.bench.machine import describe_machine
from zerobeast_tools.bench.options import emit
from zerobeast_tools.bench.peers import MARGIN_S, RUNNERS
from zerobeast_tools.bench.peers.catalogue import CLEANRL
from zerobeast_tools.bench.peers.installation import prepare
from zerobeast_tools.bench.peers.process import PeerFailed, run_child
from zerobeast_tools.bench.race.field import NAMES, TASKS, Entry, Task, pick
from zerobeast_tools.bench.race.ours import race_ours
from zerobeast_tools.bench.race.results import (
    Result,
    find_outcome,
    limit_of_others,
    load_result,
    parse_outcome,
    result_path,
    save_result,
    table,
    when,
)

EVAL_SEED = 1_000_000  #: of the environments of all evaluations
HARD_FACTOR = 4.0  #: times the limit, after which a peer is killed: its evaluations do not count, but they take time


class Plan(NamedTuple):
    """What to run, where."""

    seeds: tuple[int, ...]
    only: tuple[str, ...]
    most_s: float  #: that a run may take
    root: Path
    venvs: Path
    cleanrl: Path | None
    fresh: bool
    machine: dict[str, Any]
    commit: str | None


def main(argv: list[str]) -> int:
    """`beast bench race`; exit code 1 if a run has failed.

    Raises:
      ConfigError: a flag is wrong, or a result in the folder is of another machine.
    """
    options = _parser().parse_args(argv)
    tasks = [TASKS[name] for name in pick("--tasks", options.tasks, tuple(TASKS))]
    plan = _plan(options)
    results = [result for task in tasks for result in race(task, plan)]
    notes = [f"{plan.machine['cpu']}, {plan.machine['cores']:g} cores; {when(results)}"]
    if skipped := [name for name in plan.only if name.startswith(CLEANRL.name) and not plan.cleanrl]:
        notes.append(f"{', '.join(skipped)}: left out without --cleanrl DIR, a checkout of github.com/vwxyzjn/cleanrl")
    details = {"machine": plan.machine, "commit": plan.commit, "results": [result._asdict() for result in results]}
    emit(details, table(results, notes), options.json)
    return int(any(result.ended == "failure" for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = commands.make_parser("beast bench race", __doc__)
    parser.add_argument("--tasks", help=f"some of {','.join(TASKS)}; default: all")
    parser.add_argument("--only", help=f"some of {','.join(NAMES)}; default: all")
    parser.add_argument("--seeds", default="1,2,3", help="with commas; default %(default)s")
    meaning = "seconds that a run may take, even if three times our median is more; default %(default)s"
    parser.add_argument("--limit", type=commands.parse_positive, default=21_600, help=meaning)
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL; without it, its scripts are left out")
    default = Path(run_files.ROOT) / "race"
    parser.add_argument("--root", type=Path, default=default, help="folder of the results; default %(default)s")
    default = Path.home() / ".cache" / "zerobeast-peers"
    parser.add_argument("--venvs", type=Path, default=default, help="folder of the virtual environments")
    parser.add_argument("--fresh", action="store_true", help="discard results of the same tasks, packages and seeds")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    texts = [each.strip() for each in options.seeds.split(",")]
    seeds = tuple(int(each) for each in texts if each.isdecimal())
    if len(set(seeds)) < len(texts):
        expected = "different whole numbers, at least 0, with commas between them"
        raise ConfigError(path="--seeds", value=options.seeds, expected=expected)
    if options.cleanrl and not (options.cleanrl / "cleanrl" / "ppo.py").is_file():
        raise ConfigError(path="--cleanrl", value=str(options.cleanrl), expected="a folder with cleanrl/ppo.py")
    found = describe_machine()
    folders = (options.root.expanduser().resolve(), options.venvs.expanduser().resolve())
    cleanrl = options.cleanrl and options.cleanrl.expanduser().resolve()
    machine = {name: found[name] for name in ("cpu", "cores")}
    only = tuple(pick("--only", options.only, NAMES))
    if not options.cleanrl and all(name.startswith(CLEANRL.name) for name in only):
        raise ConfigError(path="--only", value=options.only, expected="--cleanrl DIR as well, a checkout of CleanRL")
    return Plan(seeds, only, options.limit, *folders, cleanrl, options.fresh, machine, found["commit"])


def race(task: Task, plan: Plan) -> Iterator[Result]:
    """The results of a task, ours first; a package that fails is not tried with further seeds."""
    chosen = [entry for entry in task.entries if entry.name in plan.only and (plan.cleanrl or not entry.script)]
    ours: list[Result] = []
    for entry in chosen:
        limit_s = plan.most_s if entry.package is None else limit_of_others(ours, plan.most_s)
        for seed in plan.seeds:
            path = result_path(plan.root, task.name, entry.name, seed)
            result = None if plan.fresh else load_result(path, plan.machine, limit_s)
            if result is None:
                result = _run(task, entry, seed, limit_s, plan)
                if result.ended != "failure":
                    save_result(path, result)
            write(f"{task.name}, {entry.name}, seed {seed}: {describe(result)}", sys.stderr)
            yield result
            if entry.package is None:
                ours.append(result)
            if result.ended == "failure":
                break


def describe(result: Result) -> str:
    """A result as a sentence."""
    if result.ended == "failure":
        return result.failure
    verb = "reached the threshold" if result.ended == "threshold" else f"ended ({result.ended})"
    return f"{verb} after {result.seconds:.0f} s, {result.agent_steps:,} agent steps, score {result.score}"


def _run(task: Task, entry: Entry, seed: int, limit_s: float, plan: Plan) -> Result:
    write(f"{task.name}, {entry.name}, seed {seed}: {limit_s:.0f} s at most", sys.stderr)
    what = f"{task.env}, {task.threshold:,g}"
    result = Result(what, entry.name, seed, entry.settings, machine=plan.machine, commit=plan.commit)
    result = result._replace(date=f"{datetime.now(UTC):%Y-%m-%d}")
    log = result_path(plan.root, task.name, entry.name, seed).with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        if entry.package is None:
            return result._replace(**race_ours(task, seed, EVAL_SEED, limit_s, log))
        return result._replace(**_race_peer(task, entry, seed, limit_s, log, plan))
    except BeastError as error:
        return result._replace(failure=str(error))


def _race_peer(task: Task, entry: Entry, seed: int, limit_s: float, log: Path, plan: Plan) -> dict[str, Any]:
    """Train with a peer in its own virtual environment; returns fields of a `Result`."""
    assert entry.package is not None, "it is not ours"
    command = [str(prepare(entry.package, plan.venvs)), str(RUNNERS / entry.runner)]
    terms = {"env": task.env, "seed": seed, "threshold": task.threshold, "every": task.every}
    terms |= {"episodes": task.episodes, "eval_seed": EVAL_SEED, "limit": limit_s}
    script, *theirs = entry.script.split() or [""]
    if script:
        terms |= {"script": f"{plan.cleanrl}/cleanrl/{script}"}
    with tempfile.TemporaryDirectory(prefix="beast-race-", ignore_cleanup_errors=True) as folder:
        command += [f"--{name}={value}" for name, value in terms.items()]
        command += [f"--started={time.monotonic()}", *(["--", *theirs] if script else [])]
        environ, hard_s = {**entry.package.environ, "TMPDIR": folder}, HARD_FACTOR * limit_s + MARGIN_S
        try:
            return parse_outcome(run_child(command, log, hard_s, environ, Path(folder)))
        except PeerFailed:
            if log.exists() and (found := find_outcome(log.read_text(errors="replace"))):
                return found  # it failed afterwards: some packages crash or hang while they clear up
            raise
