"""Replay on disk: inserts and samples per second compared with memory bandwidth, and bytes per step, with compression.

Rollouts of random play are stored repeatedly. The baseline copies the same number of bytes from memory to memory: whole
rollouts, and the two frame stacks of each sampled transition from random places. The relevant settings are `env`,
`learner.unroll_length` and `actor.envs_per_group`: the rollouts of an env group are stored together.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import count, cycle
from pathlib import Path

import numpy as np
import torch

from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.tree import ALGORITHM
from zerobeast.common.wire import Origin
from zerobeast.common.wire.layout import item_bytes
from zerobeast.common.wire.spaces import field_of
from zerobeast.rl.algos.dqn.config import DQNConfig
from zerobeast.rl.data import Rollouts
from zerobeast.rl.replay.frames import Compression
from zerobeast.rl.replay.items import NStep
from zerobeast.rl.replay.replay import Replay
from zerobeast_tools.bench.figures import STEPS_S, Figure, Goal, figure, per_second
from zerobeast_tools.bench.in_process import CPU, InProcess, folder_on_disk
from zerobeast_tools.bench.options import emit_figures, parse_options

STORED_STEPS = 40_000  #: agent steps in the replay; draws come from all over it
PLAYED_STEPS = 10_000  #: agent steps that are played to fill it
BATCH, N_STEP = 32, 3  #: transitions of a draw, steps of each
SIZE_GOAL = Goal("<=", 0.333, of_ratio=True)  #: of the size of an agent step's whole stack


def main(argv: list[str]) -> int:
    """`beast bench replay`."""
    options, config, _ = parse_options("replay", __doc__, argv, seconds=3.0)
    emit_figures(measure(config, options.seconds), options.json)
    return 0


def measure(config: RunConfig, seconds: float, stored: int = STORED_STEPS, played: int = PLAYED_STEPS) -> list[Figure]:
    """Measure each figure for `seconds`; frames that are not bytes are stored raw only."""
    messages = list(play_rollouts(config, played))
    obs = messages[0].rows["obs"]
    kinds: tuple[Compression, ...] = ("none", "zstd") if obs.dtype == np.uint8 else ("none",)
    figures = []
    for compression in kinds:
        with folder_on_disk(config.root) as folder:
            sizes = DQNConfig(replay_size=stored, replay_compression=compression, batch_size=BATCH)
            figures += _measure_replay(Path(folder), messages, sizes, seconds)
    return figures


def play_rollouts(config: RunConfig, steps: int) -> Iterator[Rollouts]:
    """Rollouts of a group of environments at a time, of the random actions that DQN begins with."""
    rows, unroll = config.actor.envs_per_group, config.learner.unroll_length
    learner = config.learner.model_copy(update={"batch_size": rows})
    dqn = DQNConfig(replay_size=BATCH * unroll, exploration="annealed")
    with InProcess(config.model_copy(update={"algo": "dqn", "learner": learner, ALGORITHM: dqn}), lag=0) as run:
        trainer = run.trainer
        for seq in range(-(-steps // (rows * unroll))):
            origins = np.array([Origin(1, 0, seq, row, rows) for row in range(rows)])
            yield Rollouts(run.collect(), trainer.record, trainer.algorithm.env, CPU, origins=origins)


def _measure_replay(folder: Path, messages: list[Rollouts], sizes: DQNConfig, seconds: float) -> list[Figure]:
    env, record = messages[0].env, messages[0].record
    items = partial(NStep, n=N_STEP, discount=0.99, shape=_plain)
    replay = Replay(folder, record, env, items, sizes, seed=1, device=CPU)
    steps: int = messages[0].valid.shape[1]
    frame = field_of("frame", env.obs)
    stack = env.frame_stack * math.prod(frame.shape) * item_bytes(frame)
    memory = _MemoryCopies(sizes.replay_size, messages, stack)
    seqs, again = count(), cycle(messages)

    def insert() -> int:
        rollouts = next(again)
        assert rollouts.origins is not None, "play gives their origins"
        rollouts.origins[:, Origin._fields.index("seq")] = next(seqs)
        replay.insert(rollouts)
        return len(rollouts) * steps

    stored = 0
    while stored < sizes.replay_size:  # only the first round allocates blocks and pages
        stored += insert()
        memory.insert()
    inserts, copies = per_second(insert, seconds), per_second(memory.insert, seconds)
    draws, reads = per_second(lambda: len(replay.draw(BATCH, 1.0).ids), seconds), per_second(memory.draw, seconds)
    taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir()) / sizes.replay_size
    what = f"{env.env_id}, replay_compression {sizes.replay_compression}"
    goal = SIZE_GOAL if env.frame_stack > 1 else None  # other observations are stored as they are
    return [
        figure(f"{what}: inserts", inserts, STEPS_S, yardstick=copies),
        figure(f"{what}: draws of {BATCH}", draws, "transitions/s", yardstick=reads),
        figure(f"{what}: on disk, beside a stack", taken, "bytes/agent step", goal, yardstick=stack),
    ]


class _MemoryCopies:
    """A buffer as large as an uncompressed replay, with nothing but copies into it and out of it."""

    def __init__(self, steps: int, messages: list[Rollouts], stack: int) -> None:
        self._steps: int = messages[0].valid.size
        self._messages, self._at = cycle([each.rows.view(np.uint8) for each in messages]), 0
        self._places = np.zeros((-(-steps // self._steps), messages[0].rows.nbytes), np.uint8)
        flat = self._places.reshape(-1)
        self._stacks = flat[: flat.size // stack * stack].reshape(-1, stack)
        self._drawn, self._rng = np.zeros((2 * BATCH, stack), np.uint8), np.random.default_rng(1)

    def insert(self) -> int:
        """Copy the next rollouts; returns their steps."""
        self._places[self._at] = next(self._messages)
        self._at = (self._at + 1) % len(self._places)
        return self._steps

    def draw(self) -> int:
        """Copy stacks from random places; returns the number of transitions."""
        np.take(self._stacks, self._rng.integers(0, len(self._stacks), len(self._drawn)), axis=0, out=self._drawn)
        return BATCH


def _plain(rewards: torch.Tensor) -> torch.Tensor:
    return rewards
