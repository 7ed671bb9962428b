"""Whether this tree and another commit learn the same, to the last digit.

Each trains in the same way, deterministically and in float32, and all arrays of its last checkpoint are compared.
Whatever they are called there, the same numbers have to be in both.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zerobeast import commands
from zerobeast.common.errors import BeastError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast.launcher.private_folder import private_folder
from zerobeast.tools.bench.checkout import HERE, checkout, command

EXACT = ["--deterministic", "true", "--seed", "3", "--learner.precision", "float32", "--broker.precision", "float32"]
#: algorithm -> environment and settings
RUNS = {
    "impala": "--env CartPole-v1 --total_steps 8192",
    "a2c": "--env CartPole-v1 --total_steps 8192",
    "ppo": "--env CartPole-v1 --total_steps 8192",
    "vmpo": "--env CartPole-v1 --total_steps 8192",
    "impact": "--env CartPole-v1 --total_steps 8192",
    "dqn": "--env CartPole-v1 --total_steps 4000",
    "r2d2": "--env CartPole-v1 --total_steps 4000",
    "sac": "--env Pendulum-v1 --total_steps 2000",
}
LIMIT_S = 600.0


def main(argv: list[str]) -> int:
    """`beast bench digits`; returns 1 if a number differs.

    Raises:
      BeastError: a run does not end well, or there is no such commit.
    """
    parser = commands.parser("beast bench digits", __doc__)
    parser.add_argument("--checkout", metavar="COMMIT", required=True, help="another commit of this repository")
    parser.add_argument("--algos", default=",".join(RUNS), help=f"with commas between; default {','.join(RUNS)}")
    options = parser.parse_args(argv)
    algos = options.algos.split(",")
    if unknown := set(algos) - RUNS.keys():
        parser.error(f"--algos {','.join(sorted(unknown))}: expected some of {','.join(RUNS)}")
    differing = 0
    with checkout(options.checkout) as tree:
        for algo in algos:
            here, there = (_trained(each, algo) for each in (HERE, tree))
            differing += here != there
            verdict = f"{len(here)} arrays equal" if here == there else f"{_apart(here, there)} of {len(here)} differ"
            write(f"{algo:<7} {verdict}")
    return 1 if differing else 0


def _trained(tree: Path, algo: str) -> list[str]:
    """Digests of the arrays in the last checkpoint of a run, in order of size and content."""
    with private_folder() as folder:
        own = ("--algo", algo, "--name", "run", "--root", str(folder), *EXACT, *RUNS[algo].split())
        line, environ = command(tree, "train", *own)
        done = subprocess.run(
            line, env=environ, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode:
            raise BeastError(f"{algo} of {tree} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        saved = torch.load(folder / "run" / run_files.CHECKPOINT, map_location="cpu", weights_only=True)
    return sorted(hashlib.sha256(each.tobytes()).hexdigest() for each in _arrays(saved))


def _arrays(part: Any) -> Iterator[np.ndarray]:
    """All floating-point tensors of a checkpoint."""
    if isinstance(part, torch.Tensor) and part.is_floating_point():
        yield part.float().numpy()
    elif isinstance(part, dict):
        for each in part.values():
            yield from _arrays(each)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _arrays(each)


def _apart(here: list[str], there: list[str]) -> int:
    return len(set(here) - set(there))
