"""Every item of a replay, and no other, against a reconstruction episode by episode in plain Python."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.build.replays import KINDS, POLICY, STACKED, Step, T, Truth, World, column, draw_everything, replay_of, value
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.replay.items import BurnIn, NStep

GAMMA = 0.9


def half(rewards: torch.Tensor) -> torch.Tensor:
    return (rewards / 2).clamp(-1, 1)


def assert_inputs(world: World, inputs: Any, steps: list[Any]) -> None:
    """Assert that `inputs` is the StepInput [M, ...] of these steps [M]."""
    numbers = [step.number for step in steps]
    seen = [step.stack for step in steps] if world.env.frame_stack > 1 else numbers
    for kind, each in (("obs", seen), ("last_action", numbers)):
        for found, expected in zip(leaves(getattr(inputs, kind)), column(world, kind, each), strict=True):
            assert found.dtype == torch.from_numpy(expected).dtype
            assert np.array_equal(found.numpy(), expected), kind
    assert np.array_equal(inputs.reward.numpy(), np.array([step.reward for step in steps], np.float32))
    assert inputs.first.tolist() == [step.first for step in steps]
    if world.env.action_mask:
        assert np.array_equal(inputs.action_mask.numpy(), value((world.env.mask_size,), "|b1", numbers))
        assert inputs.action_mask.view(torch.uint8).max() <= 1
    else:
        assert inputs.action_mask is None


def assert_extras(extras: dict[str, torch.Tensor], steps: list[Step]) -> None:
    assert list(extras) == [name for name, _, _ in POLICY.extras]
    for name, dtype, shape in POLICY.extras:
        assert np.array_equal(extras[name].numpy(), value(shape, dtype, [step.number for step in steps]))


def played(world: World, folder: Path, items: Any, capacity: int, look: Any) -> None:
    """Insert random batches, and look at all items after each, and again after a restart."""
    replay = replay_of(world, folder, items, capacity)
    for _ in range(12):
        if rows := world.batch():
            world.inserted += rows
            replay.insert(world.stored(rows))
        look(world, replay, Truth(world.inserted, capacity))
    look(world, replay_of(world, folder, items, capacity), Truth(world.inserted, capacity))


def look_at_steps(n: int) -> Any:
    def look(world: World, replay: Any, truth: Truth) -> None:
        spans = {slot * T + t: (t, m, steps) for slot, t, m, steps in truth.spans(n) if t + m + 1 < len(steps)}
        ids, found = draw_everything(replay)
        assert ids.tolist() == sorted(spans)
        assert replay.size == len(spans)
        if not spans:
            return
        batch, at = found
        begins = [spans[each][2][spans[each][0]] for each in ids]
        follows = [spans[each][2][spans[each][0] + 1] for each in ids]
        ends = [spans[each][2][spans[each][0] + spans[each][1]] for each in ids]
        where = torch.from_numpy(at)
        for inputs, steps in ((batch.inputs, begins), (batch.next_inputs, ends)):
            assert_inputs(world, tree_map(lambda entry: entry[0][where], inputs), steps)
        for taken, expected in zip(
            leaves(batch.action), column(world, "last_action", [step.number for step in follows]), strict=True
        ):
            assert np.array_equal(taken[where].numpy(), expected)
        assert_extras({name: entry[where] for name, entry in batch.extras.items()}, begins)
        assert_extras({name: entry[where] for name, entry in batch.next_extras.items()}, ends)
        for each, index in zip(ids, at, strict=True):
            t, m, steps = spans[each]
            rewards = [min(1.0, max(-1.0, step.reward / 2)) for step in steps[t + 1 : t + m + 1]]
            total = sum(GAMMA**power * reward for power, reward in enumerate(rewards))
            assert float(batch.reward[index]) == pytest.approx(total, abs=1e-5)
            expected = 0.0 if steps[t + m].terminated else GAMMA**m
            assert float(batch.discount[index]) == pytest.approx(expected, abs=1e-6)

    return look


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("n", "capacity", "drops"), [(1, 5, 0), (1, 30, 0.4), (3, 17, 0), (3, 30, 0.4), (T, 60, 0)])
def test_every_transition_is_that_of_its_episode_and_none_leads_past_rollouts_that_were_dropped(
    kind: Any, n: int, capacity: int, drops: float, tmp_path: Path
) -> None:
    env, compression = kind
    world = World(env, seed=n * 100 + capacity, compression=compression, drops=drops)
    items = partial(NStep, n=n, discount=GAMMA, shape=half)
    played(world, tmp_path, items, capacity, look_at_steps(n))


def look_at_sequences(burn_in: int, length: int) -> Any:
    def look(world: World, replay: Any, truth: Truth) -> None:
        expected = {}
        for slot, t, m, steps in truth.spans(length):
            before = truth.burn_in(slot, burn_in // T)
            if steps[t].first:
                part = [steps[t]] * burn_in + steps[t : t + m + 1]
                expected[slot * T + t] = part, m, np.zeros(2)
            elif t == 0 and before is not None:
                part = before + steps[: m + 1]
                expected[slot * T] = part, m, value((2,), "<f4", part[0].number)
        ids, found = draw_everything(replay)
        assert ids.tolist() == sorted(expected)
        for each, at in zip(ids, found[1] if len(ids) else (), strict=True):
            batch = found[0]
            part, m, core = expected[each]
            part = part + [part[-1]] * (length - m)
            assert_inputs(world, tree_map(lambda entry, at=at: entry[:, at], batch.inputs), part)
            assert batch.burn_in == burn_in
            assert batch.mask[:, at].tolist() == [False] * burn_in + [True] * m + [False] * (length - m)
            assert np.array_equal(batch.core_state[at].numpy(), core)
            assert batch.terminated[:, at].tolist() == [step.terminated for step in part]
            assert_extras({name: entry[: burn_in + m, at] for name, entry in batch.extras.items()}, part[: burn_in + m])
            numbers = [step.number for step in part[1:]]
            for taken, wanted in zip(leaves(batch.action), column(world, "last_action", numbers), strict=True):
                assert np.array_equal(taken[:, at].numpy(), wanted)

    return look


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("burn_in", "length", "capacity", "drops"),
    [(0, 3, 9, 0), (T, 6, 20, 0), (T, 6, 30, 0.4), (2 * T, 2 * T, 60, 0), (T, 1, 7, 0)],
)
def test_every_sequence_is_of_one_episode_with_its_own_state_and_none_leads_past_rollouts_that_were_dropped(
    kind: str, burn_in: int, length: int, capacity: int, drops: float, tmp_path: Path
) -> None:
    env, compression = KINDS[kind]
    if "bits" in kind:
        drops = 0.0  # of bits, steps are easily equal
    world = World(env, seed=burn_in * 100 + length, streams=2, compression=compression, drops=drops)
    items = partial(BurnIn, burn_in=burn_in, length=length)
    played(world, tmp_path, items, capacity, look_at_sequences(burn_in, length))


@pytest.mark.parametrize(
    "items",
    [
        partial(NStep, n=T + 1, discount=0.9, shape=half),
        partial(BurnIn, burn_in=T + 1, length=3),
        partial(BurnIn, burn_in=T, length=0),
    ],
)
def test_items_that_do_not_fit_the_rollouts_are_refused(items: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{T}"):
        replay_of(World(STACKED, 1), tmp_path, items, 8)
