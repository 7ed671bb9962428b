"""Compare public packages with this one on the same task and machine, one after the other.

The task is Pong (84x84 grey, 4 stacked frames, frame skip 4) with the Nature DQN network, on-policy or by DQN, or
HalfCheetah-v5 by SAC. Each package has its own virtual environment, which is created when it is first needed. Nothing
else should run at the same time. Every setting of `beast train` is a flag here too, for the row of this package.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast.common.process.terminal import write
from zerobeast.plan.placement import placement_of
from zerobeast.version import __version__
from zerobeast_tools.bench.figures import STEPS_S, Figure, Goal, figure
from zerobeast_tools.bench.options import emit_figures, numeric_parser
from zerobeast_tools.bench.peers.catalogue import OWN_NAME, WORKS, Peer, Work, choose
from zerobeast_tools.bench.peers.installation import prepare
from zerobeast_tools.bench.peers.process import PeerFailed, run_child
from zerobeast_tools.throwaway_run import load_settings

RUNNERS = Path(__file__).parent / "runners"
MARGIN_S = 600.0  #: for imports, the first update and an orderly end, even on a busy machine


class Row(NamedTuple):
    """The result of a peer, or ours."""

    peer: str
    version: str
    settings: str
    rate: float | None = None  #: agent steps a second; None if it failed
    failure: str | None = None  #: why


def main(argv: list[str]) -> int:
    """`beast bench peers`; exit code 1 if a row has no rate.

    Raises:
      ConfigError: a peer is unknown, or a setting is wrong.
    """
    parser = numeric_parser("peers", __doc__, seconds=60.0, warmup=20.0)
    works = "; ".join(f"{work.name}: {work.what}" for work in WORKS.values())
    parser.add_argument("--work", choices=list(WORKS), default="pong", help=f"{works}; default pong")
    parser.add_argument(
        "--only", help=f"some of {','.join(choose(None, WORKS['pong']))}; default: all packages for the task"
    )
    meaning = "folder of the virtual environments and the peers' logs"
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "zerobeast-peers", help=meaning)
    options, flags = parser.parse_known_args(argv)
    work = WORKS[options.work]
    names, flags = choose(options.only, work), [*flags, *work.flags]
    load_settings(flags)  # a wrong setting fails here, before anything runs
    root, warmup, seconds = options.venvs.expanduser().resolve(), options.warmup, options.seconds
    rows = []
    for name in names:
        write(f"{name}: training for {warmup + seconds:.0f} s", sys.stderr)
        ours = name == OWN_NAME
        row = measure_ours(flags, warmup, seconds) if ours else measure_peer(work.peer(name), root, warmup, seconds)
        write(f"{name}: {row.failure or f'{row.rate:.0f} agent steps/s'}", sys.stderr)
        rows.append(row)
    failures = [f"{row.peer}: {row.failure}" for row in rows if row.failure]
    details = {"work": work.name, "seconds": seconds, "warmup": warmup, "rows": [row._asdict() for row in rows]}
    emit_figures(figures(rows, work), options.json, "\n".join(failures), **details)
    return 1 if failures else 0


def measure_peer(peer: Peer, root: Path, warmup_s: float, seconds: float) -> Row:
    """Train with a peer in its own virtual environment in `root`; an error becomes the row's failure."""
    try:
        python, (script, *arguments) = prepare(peer.package, root), peer.runner.split()
        command = [str(python), str(RUNNERS / script), *arguments, f"--warmup={warmup_s}", f"--seconds={seconds}"]
        with tempfile.TemporaryDirectory(prefix="beast-peer-", ignore_cleanup_errors=True) as folder:
            environ, limit_s = {**peer.package.environ, "TMPDIR": folder}, warmup_s + seconds + MARGIN_S
            output = run_child(command, root / f"{peer.name}.log", limit_s, environ, Path(folder))
        rate, version = parse_line(output)
    except PeerFailed as error:
        return Row(peer.name, peer.version, peer.settings, failure=str(error))
    return Row(peer.name, version, peer.settings, rate)


def measure_ours(flags: list[str], warmup_s: float, seconds: float) -> Row:
    """Train with all our services, as `beast bench train` does."""
    from zerobeast_tools.bench.train import measure

    config = load_settings(flags)
    what = f"{config.algo}, {placement_of(config).name}, {config.actor.env_groups} x {config.actor.envs_per_group} envs"
    try:
        run = measure(flags, warmup_s, seconds)
    except BeastError as error:
        return Row(OWN_NAME, __version__, what, failure=str(error))
    return Row(OWN_NAME, __version__, f"{what}, {run.pages['learner'].get('precision', 'float32')}", run.rate)


def parse_line(output: str) -> tuple[float, str]:
    """Find the measurement in what a runner wrote; packages write much else, before and after.

    Returns:
      Agent steps a second, after frame skip, and the version of the package.

    Raises:
      PeerFailed: there is no measurement.
    """
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError, TypeError, KeyError, ZeroDivisionError):
            found = json.loads(line)
            rate, version = int(found["agent_steps"]) / float(found["seconds"]), str(found["version"])
            if rate > 0:
                return rate, version
    raise PeerFailed("it ended without a measurement")


def figures(rows: Sequence[Row], work: Work) -> list[Figure]:
    """Our rate beside theirs; theirs alone if ours is not known."""
    ours = next((row.rate for row in rows if row.peer == OWN_NAME), None)
    found = []
    for row in rows:
        what = f"{row.peer} {row.version}: {row.settings}"
        if row.rate is not None and (ours is None or row.peer == OWN_NAME):
            found.append(figure(what, row.rate, STEPS_S))
        elif row.rate is not None and ours is not None:
            goal = Goal(">=", work.peer(row.peer).goal, of_ratio=True)
            found.append(figure(f"ours beside {what}", ours, STEPS_S, goal, row.rate))
    return found
