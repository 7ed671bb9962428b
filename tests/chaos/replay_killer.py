"""Kills a process that inserts into a replay, at random moments, and checks what the next one finds.

    python -m tests.chaos.replay_killer FOLDER --kills 200 --seed 1

Prints what was tried as JSON; a failed assertion ends it with a traceback. It is a process of its own, because it forks
and pytest has threads. With --zstd frames are compressed.
"""

import argparse
import itertools
import json
import random
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.build.replays import sizes
from tests.chaos.killing import killed_after
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.replay.items import NStep
from zerobeast.rl.replay.replay import Replay

ENV = EnvSpec("Frames-v0", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(2), frame_stack=4)
T, ROWS, CAPACITY = 10, 3, 16
RECORD = rollout_record(ENV, PolicySpec((), 0), T)

COMPRESSION = "zstd" if "--zstd" in sys.argv else "none"


def opened(folder: Path) -> Any:
    items = partial(NStep, n=3, discount=0.99, shape=lambda rewards: rewards)
    settings = sizes(CAPACITY * T, 0.5, COMPRESSION)
    return Replay(folder, RECORD, ENV, items, settings, seed=1, device=torch.device("cpu"))


@cache
def frames(seq: int) -> Any:
    """The frames of a message, random, so that any part identifies it. Made fast, so that many kills hit an insert."""
    return np.random.default_rng(seq).integers(0, 256, (ROWS, T + 4, 84, 84), np.uint8)


def insert(replay: Any, seq: int, first: int = 0) -> None:
    """Insert the rows of a message from `first` on."""
    rows = np.zeros(ROWS, RECORD.dtype)
    rows["obs"] = frames(seq)
    origins = np.array([[7, 0, seq, row, ROWS] for row in range(ROWS)])
    replay.insert(SimpleNamespace(rows=rows[first:], tasks=None, origins=origins[first:]))


def checked(folder: Path) -> list[tuple[int, int]]:
    """(seq, row) of every stored row, all of which must be whole and consecutive."""
    replay = opened(folder)
    found = [(origin.seq, origin.row) for origin in replay.recovered()]
    numbers = [seq * ROWS + row for seq, row in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True, found
    shown = {frames(seq)[row, at + 3, 0].tobytes(): (seq, row, at) for seq, row in found for at in range(T + 1)}
    batch = replay.draw(32, 0.5).batch if replay.size else None
    for inputs in () if batch is None else (batch.inputs, batch.next_inputs):
        for stack in inputs.obs[0].numpy():
            seq, row, at = shown[stack[-1, 0].tobytes()]
            assert np.array_equal(stack, frames(seq)[row, at : at + 4])
    return found


def insert_forever(folder: Path, after: int, promise: Callable[[int], object]) -> None:
    """Insert messages, and report each one after its insertion."""
    replay = opened(folder)
    promise(after)
    for seq in itertools.count(after + 1):
        frames(seq)
        insert(replay, seq)
        promise(seq)


def killed(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill an inserting process again and again; returns what was seen."""
    chance = random.Random(seed)
    seen = {"kills": kills, "messages": 0, "in the middle of a row": 0, "in the middle of a message": 0}
    seq, mean_s = 0, 0.02
    for _ in range(kills):
        promised = killed_after(partial(insert_forever, folder, seq), chance.expovariate(1 / mean_s))
        mean_s *= 1.1 if promised == seq else 1.0  # a busy machine inserts nothing in that time
        found = checked(folder)
        if found:  # perhaps of a message that it has not reported yet
            last = found[-1]
            assert (promised, ROWS - 1) <= last < (promised + 2, 0), f"{last} is there, {promised} was promised"
            full = last[0] * ROWS + last[1] - ROWS + 1 >= CAPACITY
            assert len(found) >= CAPACITY - 1 or not full, f"{len(found)} rows of {CAPACITY}: more than one is lost"
            seen["in the middle of a row"] += full and len(found) < CAPACITY
            seen["in the middle of a message"] += last[1] != ROWS - 1
            if last[1] != ROWS - 1:  # as a learner does: rows up to some row are there, the others come again
                insert(opened(folder), last[0], last[1] + 1)
                last = last[0], ROWS - 1
            seq = last[0]
    return seen | {"messages": seq}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--zstd", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(1)  # a fork lacks the other threads, and would wait for them
    seen = killed(flags.folder, flags.kills, flags.seed)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
