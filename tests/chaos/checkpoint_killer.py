"""Kills a writer of checkpoints at every system call of a write, damages what it wrote, and checks what is found.

    python -m tests.chaos.checkpoint_killer FOLDER --damages 300 --seed 1

Prints what was tried as JSON; a failed assertion ends it with a traceback. It is a process of its own, because it forks
and pytest has threads.
"""

import argparse
import itertools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chaos.killing import killed_before_call
from zerobeast.common.errors import CheckpointError
from zerobeast.common.files import run_files
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, Checkpoints
from zerobeast.services.learner.kept import claim

FLOATS = 100_000
ENTRY_NAMES = ("learning", "counters", "config", "env", "policy", "rng", "statistics", "rollouts")
ENTRIES: dict[str, Any] = {key: {} for key in ENTRY_NAMES}


def state(number: int) -> dict[str, Any]:
    """A checkpoint that can be told from every other."""
    return {"format": CHECKPOINT_FORMAT, "model": {"w": torch.full((FLOATS,), float(number))}, "n": number, **ENTRIES}


def newest(folder: Path) -> int:
    """The number of the newest whole checkpoint, 0 if there is none."""
    loaded = Checkpoints(folder).load()
    if loaded is None:
        return 0
    assert torch.equal(loaded["model"]["w"], torch.full((FLOATS,), float(loaded["n"])))
    return int(loaded["n"])


def written(folder: Path, *numbers: int) -> Checkpoints:
    """Make a folder and write these checkpoints to it, one after the other."""
    folder.mkdir()
    checkpoints = Checkpoints(folder)
    for number in numbers:
        checkpoints.save(state(number))
    return checkpoints


def spoil(path: Path) -> None:
    """Cut a file in half."""
    os.truncate(path, path.stat().st_size // 2)


def at_every_call(root: Path, before: tuple[int, ...], *, spoilt: bool) -> int:
    """Write a checkpoint on top of others, killed before each system call in turn; returns how many there are."""
    for number in itertools.count():
        folder = root / f"{len(before)}{spoilt}{number}"
        written(folder, *before)
        (folder / run_files.CONFIG).touch()
        if spoilt:
            spoil(folder / run_files.CHECKPOINT)
        old = newest(folder)
        new = max(before, default=0) + 1

        def write(folder: Path = folder, new: int = new) -> None:
            with claim(folder):
                checkpoints = Checkpoints(folder)
                checkpoints.load()
                checkpoints.save(state(new))

        killed = killed_before_call(write, number)
        assert newest(folder) in ((old, new) if killed else (new,)), f"call {number}: {newest(folder)}"
        write(new=new + 1)
        assert newest(folder) == new + 1
        left = {path.name for path in folder.iterdir() if not path.name.startswith(".learner")}
        assert left <= {run_files.CONFIG, run_files.CHECKPOINT, run_files.PREVIOUS_CHECKPOINT}, left
        assert run_files.PREVIOUS_CHECKPOINT in left or new == 1, "there is a predecessor"
        if not killed:
            return number
    raise AssertionError


def damaged(root: Path, times: int, seed: int) -> dict[str, int]:
    """Cut or change the newest at random; returns how often it was loaded, and how often its predecessor was."""
    chance = random.Random(seed)
    folder = root / "damaged"
    path = written(folder, 1, 2).path
    content = path.read_bytes()
    found = {"newest": 0, "predecessor": 0}
    for _ in range(times):
        changed = bytearray(content[: chance.choice((len(content), chance.randrange(len(content))))])
        for _ in range(chance.choice((0, 1, 1, 10)) if changed else 0):
            ends = chance.choice((len(changed), 300))  # names, sizes and offsets are near both ends
            at = chance.choice((chance.randrange(len(changed)), chance.randrange(min(ends, len(changed)))))
            changed[chance.choice((at, -1 - at))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        number = newest(folder)
        assert number in (1, 2)
        found["newest" if number == 2 else "predecessor"] += 1
    spoil(path)
    spoil(folder / run_files.PREVIOUS_CHECKPOINT)
    with pytest.raises(CheckpointError):
        Checkpoints(folder).load()  # if nothing whole is left, nothing silently begins anew
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--damages", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    torch.set_num_threads(1)  # a fork lacks the other threads, and would wait for them
    calls = {
        "first": at_every_call(flags.folder, (), spoilt=False),
        "later": at_every_call(flags.folder, (1, 2), spoilt=False),
        "after damage": at_every_call(flags.folder, (1, 2), spoilt=True),
    }
    found = damaged(flags.folder, flags.damages, flags.seed)
    sys.stdout.write(json.dumps({"calls": calls, "damaged": found}) + "\n")


if __name__ == "__main__":
    main()
