"""Kills a process that inserts into a replay, at random moments, and checks what the next one finds.

    python -m tests.chaos.replay_killer FOLDER --kills 200 --seed 1

Prints what was tried as JSON; a failed assertion ends it with a traceback. It is a process of its own, because it forks
and pytest has threads. With --full it fills a small disk instead, whose root is FOLDER. With --zstd frames are
compressed.
"""

import argparse
import json
import os
import random
import signal
import struct
import sys
import time
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.build.replays import sizes
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.replay import disk
from zerobeast.rl.replay.items import NStep
from zerobeast.rl.replay.replay import Replay

ENV = EnvSpec("Frames-v0", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(2), frame_stack=4)
T, ROWS, CAPACITY = 10, 3, 16
RECORD = rollout_record(ENV, PolicySpec((), 0), T)
PROMISE = struct.Struct("<q")  #: number of messages inserted so far


COMPRESSION = "zstd" if "--zstd" in sys.argv else "none"


def opened(folder: Path, capacity: int = CAPACITY) -> Any:
    items = partial(NStep, n=3, discount=0.99, shape=lambda rewards: rewards)
    settings = sizes(capacity * T, 0.5, COMPRESSION)
    return Replay(folder, RECORD, ENV, items, settings, seed=1, device=torch.device("cpu"))


@cache
def frames(seq: int) -> Any:
    """The frames of a message, random, so that any part identifies it. Made fast, so that many kills hit an insert."""
    return np.random.default_rng(seq).integers(0, 256, (ROWS, T + 4, 84, 84), np.uint8)


def insert(replay: Any, seq: int) -> None:
    rows = np.zeros(ROWS, RECORD.dtype)
    rows["obs"] = frames(seq)
    origins = np.array([[7, 0, seq, row, ROWS] for row in range(ROWS)])
    replay.insert(SimpleNamespace(rows=rows, tasks=None, origins=origins))


def checked(folder: Path, capacity: int = CAPACITY) -> list[tuple[int, int]]:
    """(seq, row) of every stored row, all of which must be whole and consecutive."""
    replay = opened(folder, capacity)
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


def insert_forever(folder: Path, after: int, promises: int) -> None:
    """Insert messages, and report each one after its insertion."""
    replay = opened(folder)
    seq = after
    os.write(promises, PROMISE.pack(seq))
    while True:
        seq += 1
        frames(seq)
        insert(replay, seq)
        os.write(promises, PROMISE.pack(seq))


def killed(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill an inserting process again and again; returns what was seen."""
    chance = random.Random(seed)
    seen = {"kills": kills, "messages": 0, "in the middle of a row": 0, "in the middle of a message": 0}
    seq = 0
    for _ in range(kills):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            insert_forever(folder, seq, writing)
        os.close(writing)
        said = os.read(reading, PROMISE.size)
        time.sleep(chance.expovariate(1 / 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while part := os.read(reading, 65536):
            said += part
        os.close(reading)
        (promised,) = PROMISE.unpack(said[-PROMISE.size :])
        found = checked(folder)
        if found:  # perhaps of a message that it has not reported yet
            last = found[-1]
            assert (promised, ROWS - 1) <= last < (promised + 2, 0), f"{last} is there, {promised} was promised"
            full = last[0] * ROWS + last[1] - ROWS + 1 >= CAPACITY
            assert len(found) >= CAPACITY - 1 or not full, f"{len(found)} rows of {CAPACITY}: more than one is lost"
            seen["in the middle of a row"] += full and len(found) < CAPACITY
            seen["in the middle of a message"] += last[1] != ROWS - 1
            if last[1] != ROWS - 1:  # as a learner does: rows up to some row are there, the others come again
                finish(folder, *last)
                last = last[0], ROWS - 1
            seq = last[0]
    return seen | {"messages": seq}


def finish(folder: Path, seq: int, row: int) -> None:
    """Insert the rows of a message that follow `row`."""
    rows = np.zeros(ROWS, RECORD.dtype)
    rows["obs"] = frames(seq)
    origins = np.array([[7, 0, seq, each, ROWS] for each in range(ROWS)])
    replay = opened(folder)
    replay.insert(SimpleNamespace(rows=rows[row + 1 :], tasks=None, origins=origins[row + 1 :]))


def full(folder: Path) -> dict[str, str]:
    """Fill a small disk (in memory here, since that is the kind that every user can mount)."""
    said = {"in memory": refused(folder / "store", 4)}
    disk.IN_MEMORY = ()
    said["too large"] = refused(folder / "store", 20_000)
    disk.free = lambda folder: 10**12  # another process takes what was free a moment ago
    said["full"] = refused(folder / "store", 20_000)
    assert not list((folder / "store").iterdir()), "nothing stays of a replay that does not fit"
    replay = opened(folder / "store", 12)
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            said["ballast"] = str(error.strerror)
    try:
        for seq in range(1, 9):
            insert(replay, seq)  # its blocks are allocated already, unless frames are compressed
    except ConfigError as error:
        said["inserted"] = str(error)
        (folder / "ballast").unlink()
        insert(replay, 1)
        said["found"] = str(len(checked(folder / "store", 12)))
    said["size"] = str(replay.size)
    return said


def refused(folder: Path, capacity: int) -> str:
    try:
        opened(folder, capacity)
    except ConfigError as error:
        return str(error)
    raise AssertionError("taken")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--zstd", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(1)  # a fork lacks the other threads, and would wait for them
    seen = full(flags.folder) if flags.full else killed(flags.folder, flags.kills, flags.seed)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
