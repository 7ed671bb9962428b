"""Stacks of 200,000 steps that a replay rebuilds from single frames, against those that the environments showed."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from tests.build.replays import sizes
from zerobeast.common.wire.records import act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.replay.items import NStep
from zerobeast.rl.replay.replay import Replay
from zerobeast.services.actor.rollout import RolloutBuilder

N, T, K, STEPS = 500, 20, 4, 400
ENV = EnvSpec("Numbers-v0", ArraySpace.box((1,), "<i4"), ArraySpace.discrete(2), frame_stack=K)
POLICY = PolicySpec((), 0)


def test_every_stack_is_the_environments_own(tmp_path: Path) -> None:
    builder, rng = RolloutBuilder(ENV, POLICY, T, N), np.random.default_rng(1)
    items = partial(NStep, n=3, discount=0.99, shape=lambda rewards: rewards)
    replay = Replay(tmp_path, builder.spec, ENV, items, sizes(N * STEPS), seed=1, device=torch.device("cpu"))
    shown = np.zeros((STEPS + 1, N, K), np.int32)  # what the policy saw; the frame of a step is its number
    rows, answers = np.zeros(N, step_record(ENV).dtype), np.zeros(N, act_record(ENV, POLICY).dtype)
    for step in range(STEPS + 1):
        rows["first"] = rows["terminated"] | rows["truncated"] if step else True
        ends = ~rows["first"] & (rng.random(N) < 0.1)
        rows["terminated"], rows["truncated"] = ends & (rng.random(N) < 0.5), False
        rows["truncated"] = ends & ~rows["terminated"]
        rows["obs"][:, 0] = step * N + np.arange(N)
        older = np.where(rows["first"][:, None], rows["obs"], shown[step - 1, :, 1:])
        shown[step] = np.concatenate([older, rows["obs"]], axis=1)
        if step:
            builder.observe(rows)
        else:
            builder.restart(rows)
        if builder.complete:
            origins = np.array([[1, 0, step // T, row, N] for row in range(N)])
            replay.insert(SimpleNamespace(rows=(done := builder.take()), tasks=None, origins=origins))
            builder.recycle(done)
        builder.act(answers, 0, None)
    by_number = shown.reshape(-1, K)
    batch = replay.draw(200_000, 0.0).batch
    for inputs in (batch.inputs, batch.next_inputs):
        stacks = inputs.obs.numpy().reshape(-1, K)
        assert np.array_equal(stacks, by_number[stacks[:, -1]])
    assert len(np.unique(batch.inputs.obs.numpy()[0, :, -1])) > 0.6 * N * STEPS * 0.85, "most of them were looked at"
