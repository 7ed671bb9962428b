"""Streams of rollouts with random episodes, and what a replay must return, worked out step by step in plain Python."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tests.build.batches import HYBRID
from tests.helpers import as_bits
from zerobeast.common.wire import EnvSpec, Field, PolicySpec, rollout_record
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part, iterate_arrays
from zerobeast.rl.replay.items import Items
from zerobeast.rl.replay.replay import Replay

T = 4
POLICY = PolicySpec((Field("q", "<f4", (3,)), Field("count", "<i8", ())), 2)
PLAIN = EnvSpec("Plain-v0", ArraySpace.box((2,)), ArraySpace.discrete(7))
STACKED = EnvSpec("Stacked-v0", ArraySpace.box((2, 3), "|u1"), ArraySpace.box((2,)), frame_stack=3)
SINGLE = replace(STACKED, env_id="Single-v0", frame_stack=1)
BITS = EnvSpec("Bits-v0", ArraySpace.box((3,), "|b1"), ArraySpace.discrete(2), frame_stack=6)
TREES = EnvSpec(
    "Trees-v0",
    CompositeSpace("dict", (Part("camera", ArraySpace.box((2, 2))), Part("word", ArraySpace.discrete(9)))),
    HYBRID,
    frame_stack=2,
    action_mask=True,
)
#: environments, and how their frames are stored
KINDS = {
    "plain": (PLAIN, "none"),
    "stacked": (STACKED, "none"),
    "stacked, zstd": (STACKED, "zstd"),
    "single, zstd": (SINGLE, "zstd"),
    "bits": (BITS, "none"),
    "bits, zstd": (BITS, "zstd"),
    "trees": (TREES, "none"),
}
FLAGS = ("first", "terminated", "truncated")


@dataclass(frozen=True)
class Step:
    """What arrived with one observation, and the policy's answer to it. Array contents follow from a running number."""

    number: int
    stack: tuple[int, ...]  #: numbers of the steps whose frames the policy saw, the oldest first
    first: bool
    reward: float
    terminated: bool
    truncated: bool


class Row(NamedTuple):
    """A rollout."""

    stream: int
    seq: int
    steps: list[Step]  #: T + 1


def value(shape: tuple[int, ...], dtype: str, numbers: Any) -> NDArray[Any]:
    """For steps with these numbers [...], arrays [..., *shape] whose content identifies each step."""
    within = 3 * np.arange(math.prod(shape)).reshape(shape)
    found = 7 * np.reshape(numbers, np.shape(numbers) + (1,) * len(shape)) + within
    return (found % 2 if dtype == "|b1" else found % 251).astype(dtype)


def content(array: ArraySpace, numbers: Any) -> NDArray[Any]:
    """The values of an array at steps with these numbers."""
    found = value(array.shape, array.dtype, numbers)
    return found % np.reshape(array.choices, array.shape) if array.choices else found


def fill(space: Any, column: Any, numbers: list[int]) -> None:
    """Write the values of a space at steps with these numbers, one after the other."""
    for array, part in iterate_arrays(space, column):
        found = content(array, numbers)
        part[...] = as_bits(found, found.ndim - 1) if array.bits and not array.choices else found


@dataclass
class World:
    """Streams that at random end episodes, break off, drop rollouts, have messages refused and repeat messages."""

    env: EnvSpec
    seed: int
    streams: int = 3
    compression: str = "none"
    drops: float = 0.0  #: share of complete rollouts that have no number, because the window had no room
    record: Any = field(init=False)
    inserted: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record = rollout_record(self.env, POLICY, T)
        self.chance = random.Random(self.seed)
        self.number = 0
        self.last: dict[int, Row] = {}

    def step(self, before: Step | None) -> Step:
        """The next step of a stream; without a step before it, the first of an episode."""
        self.number += 1
        ended = before is None or before.terminated or before.truncated
        first = ended or self.chance.random() < 0.05  # an environment that was replaced: no end is announced
        k = self.env.frame_stack
        stack = (self.number,) * k if first or before is None else (*before.stack[1:], self.number)
        terminated, truncated = (not first and self.chance.random() < 0.12 for _ in range(2))
        reward = 0.0 if first else self.chance.gauss(0, 2)
        return Step(self.number, stack, first, reward, terminated, truncated)

    def rollout(self, stream: int) -> Row:
        """The next rollout of a stream that is sent. It may have started again, or have dropped rollouts before."""
        before = self.last.get(stream)
        while before is not None and self.drops and self.chance.random() < self.drops:
            before = Row(stream, before.seq, self.continued(before.steps[-1]))
        fresh = before is None or self.chance.random() < 0.1
        steps = self.continued(self.step(None) if fresh else before.steps[-1])  # type: ignore[union-attr]
        row = self.last[stream] = Row(stream, 1 if before is None else before.seq + 1, steps)
        return row

    def continued(self, step: Step) -> list[Step]:
        """The T + 1 steps of a rollout that begins with this one."""
        steps = [step]
        while len(steps) <= T:
            steps.append(self.step(steps[-1]))
        return steps

    def batch(self) -> list[Row]:
        """Rollouts of several streams; some are refused, and some are repeated as no honest actor would."""
        rows = [self.rollout(self.chance.randrange(self.streams)) for _ in range(self.chance.randint(1, 6))]
        rows = [row for row in rows if self.chance.random() > 0.08]
        if rows and self.chance.random() < 0.1:
            rows.append(self.chance.choice(rows))
        return rows

    def stored(self, rows: list[Row]) -> Any:
        """The rows in the form that a replay takes."""
        content = np.zeros(len(rows), self.record.dtype)
        for entry, row in zip(content, rows, strict=True):
            self.encode(row, entry)
        origins = np.array([[5, row.stream, row.seq, 2, 4] for row in rows])
        return SimpleNamespace(rows=content, tasks=None, origins=origins)

    def encode(self, row: Row, entry: Any) -> None:
        """Write the bytes of a row."""
        numbers = [step.number for step in row.steps]
        fill(self.env.obs, entry["obs"], [*row.steps[0].stack, *numbers[1:]])
        fill(self.env.action, entry["last_action"], numbers)
        for name in ("reward", *FLAGS):
            entry[name] = [getattr(step, name) for step in row.steps]
        if self.env.action_mask:
            entry["action_mask"] = value((self.env.mask_size,), "|b1", numbers)
        for name, dtype, shape in POLICY.extras:
            entry[name] = value(shape, dtype, numbers[:-1])
        entry["core_state"] = value((2,), "<f4", numbers[0])


class Truth:
    """What a ring of `capacity` rows holds after these insertions (None: lost), and which row continues which."""

    def __init__(self, inserted: list[Row | None], capacity: int) -> None:
        newest = {number % capacity: number for number in range(len(inserted))}
        self.slots = {slot: number for slot, number in newest.items() if inserted[number]}
        self.rows = {slot: row for slot, number in self.slots.items() if (row := inserted[number])}
        self.after: dict[int, int] = {}
        newest = {}
        for slot in sorted(self.slots, key=self.slots.__getitem__):
            row = self.rows[slot]
            if (before := newest.get(row.stream)) is not None:
                if self.rows[before].seq + 1 == row.seq and self.rows[before].steps[-1] == row.steps[0]:
                    self.after[before] = slot
            newest[row.stream] = slot
        self.before = {after: before for before, after in self.after.items()}

    def known(self, slot: int) -> list[Step]:
        """The stored steps from the beginning of a row on; the last has no answer yet."""
        steps = []
        while slot in self.after:
            steps += self.rows[slot].steps[:-1]
            slot = self.after[slot]
        return steps + self.rows[slot].steps

    def spans(self, most: int) -> Iterator[tuple[int, int, int, list[Step]]]:
        """Slot, t, m and the known steps from the row on, for each span of m steps that has ended or is `most` long."""
        for slot in self.rows:
            steps = self.known(slot)
            for t in range(T):
                for m in range(1, min(most, len(steps) - 1 - t) + 1):
                    if steps[t + m].first:
                        break
                    begins = t + m + 1 < len(steps) and steps[t + m + 1].first
                    if begins or steps[t + m].terminated or steps[t + m].truncated or m == most:
                        yield slot, t, m, steps
                        break

    def burn_in(self, slot: int, rows: int) -> list[Step] | None:
        """The steps of the `rows` rows before this one; None if a row is missing."""
        steps: list[Step] = []
        for _ in range(rows):
            if slot not in self.before:
                return None
            slot = self.before[slot]
            steps = self.rows[slot].steps[:-1] + steps
        return steps


def replay_of(
    world: World, folder: Path, items: Items[Any], capacity: int, alpha: float = 0.0, batch_size: int = 1, **more: Any
) -> Any:
    """A replay for rows of this world, compressed as the world says."""
    sizes = {"replay_size": capacity * T, "batch_size": batch_size}
    settings: Any = SimpleNamespace(**sizes, priority_exponent=alpha, replay_compression=world.compression)
    more = {"seed": 1, "device": torch.device("cpu"), **more}
    return Replay(folder, world.record, world.env, items, settings, **more)


def draw_everything(replay: Any) -> tuple[NDArray[np.int64], Any]:
    """Every item once: with equal chances, each covers whole strata. Returns ids, and the batch with their indices."""
    if not replay.size:
        return np.zeros(0, np.int64), None
    drawn = replay.draw(4 * replay.size, 0.0)
    ids, at = np.unique(drawn.ids, return_index=True)
    return ids, (drawn.batch, at)


def column(world: World, kind: str, numbers: Any) -> Any:
    """For each array of a space, its values [..., *shape] at the steps with these numbers [...]."""
    space = {"obs": world.env.obs, "last_action": world.env.action}[kind]
    return [content(array, numbers) for array in space.arrays]


def chi_square(counts: NDArray[Any], expected: NDArray[Any]) -> float:
    """The chi-square statistic, in standard deviations from its mean if the probabilities are right."""
    degrees = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))
