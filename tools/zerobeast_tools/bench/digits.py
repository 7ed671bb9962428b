"""Check that this tree and another commit learn bit-identical weights.

Both train in float32 on one thread. Algorithms without a replay train deterministically with all services, and all
arrays of the last checkpoint are compared, regardless of their names. The others learn in one process, as in
`beast bench stale`, and the last weights are compared.
"""

import hashlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zerobeast import commands
from zerobeast.common.errors import BeastError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import find_usable
from zerobeast.common.wire import ArraySpace
from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.bench.checkout import HERE, beast_command, checkout

LIMIT_S = 900.0
FLOAT32 = ("--learner.precision", "float32", "--broker.precision", "float32", "--seed", "3")
CARTPOLE = ("--env", "CartPole-v1", "--total_steps", "4000")
PENDULUM = ("--env", "Pendulum-v1", "--total_steps", "1600")


def main(argv: list[str]) -> int:
    """`beast bench digits`; returns 1 if a number differs.

    Raises:
      BeastError: a run does not end well, or there is no such commit.
    """
    parser = commands.make_parser("beast bench digits", __doc__)
    parser.add_argument("--checkout", metavar="COMMIT", required=True, help="another commit of this repository")
    known = {spec.name: spec.settings for spec in find_usable()}
    parser.add_argument("--algos", default=",".join(known), help="algorithms, with commas; default %(default)s")
    options = parser.parse_args(argv)
    algos = options.algos.split(",")
    if unknown := set(algos) - known.keys():
        parser.error(f"--algos {','.join(sorted(unknown))}: expected some of {','.join(known)}")
    differing = 0
    with checkout(options.checkout) as tree:
        for algo in algos:
            run = _in_process if known[algo].replays else _with_services
            env = CARTPOLE if known[algo].takes(ArraySpace.discrete(2)) else PENDULUM
            here, there = (Counter(run(each, algo, env)) for each in (HERE, tree))
            apart = max((here - there).total(), (there - here).total())
            if not here:
                raise BeastError(f"{algo}: the last checkpoint of {HERE} has no arrays")
            differing += bool(apart)
            write(
                f"{algo:<8} {f'{apart} of {here.total()} arrays differ' if apart else f'{here.total()} arrays equal'}"
            )
    return 1 if differing else 0


def _with_services(tree: Path, algo: str, env: Sequence[str]) -> list[str]:
    """Digests of the arrays in the last checkpoint of a deterministic run."""
    with private_folder() as folder:
        own = ("--algo", algo, "--name", "run", "--root", str(folder), "--deterministic", "true")
        _run_to_end(tree, folder, "train", *own, *FLOAT32, *env)
        saved = torch.load(folder / "run" / run_files.CHECKPOINT, map_location="cpu", weights_only=True)
    return [_digest(each) for each in _arrays(saved)]


def _digest(array: torch.Tensor) -> str:
    content = array.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{array.dtype} {tuple(array.shape)} ".encode() + content).hexdigest()


def _in_process(tree: Path, algo: str, env: Sequence[str]) -> list[str]:
    """The digest of the last weights of a run in one process."""
    with private_folder() as folder:
        own = ("--algos", algo, "--seeds", "1", "--lag", "0", "--json", str(folder / "result.json"))
        _run_to_end(tree, folder, "bench", "stale", *own, *FLOAT32, *env)
        [run] = json.loads((folder / "result.json").read_text())["runs"]
    if "weights" not in run:
        raise BeastError(
            f"beast bench stale of {tree} reports no weights yet: expected a later commit, or other --algos"
        )
    return [run["weights"]]


def _run_to_end(tree: Path, folder: Path, *arguments: str) -> None:
    """Run a command of `beast` to its end. Raises BeastError if that is not a good one."""
    line, environ = beast_command(tree, *arguments)
    what = f"beast {' '.join(arguments)} of {tree}"
    try:
        run = partial(subprocess.run, line, env=environ, cwd=folder, timeout=LIMIT_S, check=False)
        done = run(capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise BeastError(f"{what} has not ended within {LIMIT_S:g} s") from error
    if done.returncode:
        raise BeastError(f"{what} ended with {done.returncode}: {done.stderr.strip()[-300:]}")


def _arrays(part: Any) -> Iterator[torch.Tensor]:
    """All tensors of a checkpoint, but who has sent the rollouts that it holds: clients draw their ids at random."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, dict | list | tuple):
        named = part.items() if isinstance(part, dict) else ((None, each) for each in part)
        for name, each in named:
            yield from _arrays(each) if name != "origin" else ()
