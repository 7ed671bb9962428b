"""The same deterministic run in every placement, and whether all have learned the same."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tests.build.commands import beast
from tests.helpers import killed_at_last
from zerobeast.testing.small_run import are_same

PLACEMENTS = {  #: each with two env groups
    "apart": ("--local.placement", "apart", "--local.actors", "2", "--actor.env_groups", "1"),
    "fused": ("--local.placement", "fused", "--local.workers", "2", "--actor.env_groups", "1"),
    "serial": ("--local.placement", "serial", "--actor.env_groups", "2"),
}
OF_ITS_PROCESSES = ("config", "rollouts")  #: entries of a checkpoint that depend on which actors there were


def deterministic(root: Path, name: str) -> tuple[str, ...]:
    """The beginning of a command that trains such a run."""
    return ("train", "--plain", "--root", str(root), "--name", name, "--deterministic", "true")


def unlike(root: Path, flags: str) -> list[str]:
    """Train in all placements at once; returns those that have not learned the same as services apart.

    Rows of a replay name the actors that they came from, which differ.
    """
    with ExitStack() as stack:
        runs = [beast(*deterministic(root, name), *flags.split(), *how) for name, how in PLACEMENTS.items()]
        for run in runs:
            stack.enter_context(killed_at_last(run))
        for run in runs:
            out, error = run.communicate()
            assert run.returncode == 0, out[-3000:] + error
    apart = final_state(root, "apart")
    return [name for name in PLACEMENTS if not are_same(apart, final_state(root, name), but="origin")]


def final_state(root: Path, name: str) -> dict[str, Any]:
    """The final state of a run: weights, optimiser, random numbers, replay, returns of episodes."""
    state = torch.load(root / name / "checkpoint.pt", weights_only=True)
    saved = {key: value for key, value in state.items() if key not in OF_ITS_PROCESSES}
    del saved["counters"]["elapsed_s"]
    return saved
