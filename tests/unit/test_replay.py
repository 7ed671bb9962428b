"""Draws of a replay: their probabilities and weights, and how they continue after a restart."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.build.replays import PLAIN, STACKED, T, Truth, World, chi_square, draw_everything, replay_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.records import Origin
from zerobeast.rl.replay.items import BurnIn, NStep
from zerobeast.rl.replay.ring_file import NAME

CAPACITY = 15


def plain(rewards: torch.Tensor) -> torch.Tensor:
    return rewards


ITEMS: Any = partial(NStep, n=2, discount=0.9, shape=plain)


def filled(folder: Path, batches: int = 20, alpha: float = 0.7, items: Any = ITEMS, **more: Any) -> tuple[World, Any]:
    world = World(PLAIN, seed=3)
    replay = replay_of(world, folder, items, CAPACITY, alpha, **more)
    insert(world, replay, batches)
    return world, replay


def insert(world: World, replay: Any, batches: int) -> None:
    for _ in range(batches):
        if rows := world.batch():
            world.inserted += rows
            replay.insert(world.stored(rows))


def again(folder: Path, **more: Any) -> Any:
    """The replay that the next process opens."""
    return replay_of(World(PLAIN, seed=3), folder, ITEMS, CAPACITY, **more)


def frequencies(replay: Any, ids: np.ndarray, n: int = 50_000) -> np.ndarray:
    drawn = replay.draw(n, 1.0).ids
    assert np.isin(drawn, ids).all()
    return np.bincount(np.searchsorted(ids, drawn), minlength=len(ids))


def present(folder: Path, tmp_path: Path) -> np.ndarray:
    """Ids of all items of a replay, found in a copy that draws all with equal probability."""
    (tmp_path / "copy").mkdir(exist_ok=True)
    (tmp_path / "copy" / NAME).write_bytes((folder / NAME).read_bytes())
    return draw_everything(again(tmp_path / "copy"))[0]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_chances_and_weights_are_those_of_the_paper(tmp_path: Path, alpha: float) -> None:
    _, replay = filled(tmp_path / "run", alpha=alpha)
    ids = present(tmp_path / "run", tmp_path)
    assert len(ids) == replay.size > 20
    priorities = torch.rand(len(ids), generator=torch.Generator().manual_seed(1)) * 5
    replay.update(ids, priorities)
    chances = priorities.double().numpy() ** alpha
    chances /= chances.sum()
    assert chi_square(frequencies(replay, ids), 50_000 * chances) < 4.0
    drawn = replay.draw(64, 0.5)
    expected = (len(ids) * chances[np.searchsorted(ids, drawn.ids)]) ** -0.5
    np.testing.assert_allclose(drawn.weights.numpy(), expected / expected.max(), rtol=1e-5)
    assert drawn.weights.dtype == torch.float32


def test_new_items_get_the_largest_priority_so_far_or_that_of_the_algorithm(tmp_path: Path) -> None:
    world, replay = filled(tmp_path / "largest", alpha=1.0)
    ids = present(tmp_path / "largest", tmp_path)
    replay.update(ids[:1], torch.tensor([9.0]))
    replay.update(ids, torch.full((len(ids),), 3.0))
    since = len(world.inserted)
    insert(world, replay, 2)
    slots = np.arange(since, len(world.inserted)) % CAPACITY
    later = present(tmp_path / "largest", tmp_path)
    counts, new = frequencies(replay, later), np.isin(later // T, slots) | ~np.isin(later, ids)
    assert 0 < new.sum() < len(later)
    assert counts[new].mean() == pytest.approx(3 * counts[~new].mean(), rel=0.1)

    asked = list[Any]()

    def counted(batch: Any) -> torch.Tensor:
        asked.append(batch)
        return batch.extras["count"].float() + 1.0

    _, replay = filled(tmp_path / "told", alpha=1.0, first_priorities=counted)
    assert not any(len(batch.inputs.obs[0]) or len(batch.next_inputs.obs[0]) for batch in asked)
    found = replay.draw(5000, 1.0)
    _, at, counts = np.unique(found.ids, return_index=True, return_counts=True)
    chances = found.batch.extras["count"][torch.from_numpy(at)].double().numpy() + 1.0
    assert chi_square(counts, 5000 * chances / chances.sum()) < 4.0


@pytest.mark.parametrize("items", [ITEMS, partial(BurnIn, burn_in=T, length=3)], ids=["transitions", "sequences"])
def test_the_next_process_draws_what_this_one_would_have_drawn(tmp_path: Path, items: Any) -> None:
    world, replay = filled(tmp_path, items=items)
    for _ in range(30):
        drawn = replay.draw(4, 0.5)
        replay.update(drawn.ids, torch.rand(4) * 10)
        insert(world, replay, 1)
    for priority in (99.0, 1.0):  # new items still have the largest so far, which no item in the file has
        replay.update(drawn.ids, torch.full((4,), priority))
    stream = io.BytesIO()
    torch.save(replay.state(), stream)
    stream.seek(0)
    other = replay_of(World(PLAIN, seed=3), tmp_path, items, CAPACITY, 0.7, seed=99)
    other.load(torch.load(stream, weights_only=True))
    assert other.size == replay.size
    assert other.recover_rows() == []
    assert other.state() == replay.state()
    for _ in range(5):
        one, two = replay.draw(32, 0.3), other.draw(32, 0.3)
        assert one.ids.tolist() == two.ids.tolist()
        assert torch.equal(one.weights, two.weights)
        assert torch.equal(one.batch.inputs.obs, two.batch.inputs.obs)


def origins(rows: list[Any], after: int) -> list[Origin]:
    """Of the rows that the ring has, and that were inserted after so many."""
    return [Origin(5, row.stream, row.seq, 2, 4) for row in rows[max(after, len(rows) - CAPACITY) :] if row]


@pytest.mark.parametrize("there", [0, 15, 19, 20, 21, 30])
def test_rows_newer_than_the_checkpoint_are_recovered_and_new_ones_follow_both_it_and_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, there: int
) -> None:
    """The checkpoint counts the rows of 20 batches, and the file that is found has those of `there`."""
    world, replay = filled(tmp_path, batches=0)
    for batch in range(32):
        if batch == 20:
            state, known = replay.state(), len(world.inserted)
        if batch == there:
            kept, found = (tmp_path / NAME).read_bytes(), len(world.inserted)
        insert(world, replay, 1)
    (tmp_path / NAME).write_bytes(kept)
    rows, since = [*world.inserted[:found], *[None] * (known - found)], len(world.inserted)
    assert again(tmp_path).recover_rows() == origins(rows[:found], 0)
    other = again(tmp_path, batch_size=32 if found < known else 1)
    other.load(state)
    assert other.recover_rows() == origins(rows, known)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (found < known)
    for _ in range(12):  # at first there are fewer items than a draw takes
        insert(world, other, 1)
        now = [*rows, *world.inserted[since:]]
        spans = Truth(now, CAPACITY).spans(2)
        expected = [slot * T + t for slot, t, m, steps in spans if t + m + 1 < len(steps)]
        assert other.size == len(expected)
        assert draw_everything(again(tmp_path))[0].tolist() == sorted(expected)
    last = again(tmp_path)
    last.load(state)
    assert last.recover_rows() == origins(now, known)


def test_priorities_that_are_not_finite_change_nothing_and_0_can_still_be_drawn(tmp_path: Path) -> None:
    _, replay = filled(tmp_path, alpha=1.0)
    ids, size = replay.draw(8, 0.4).ids, replay.size
    for wrong in (np.nan, np.inf):
        replay.update(ids, torch.full((8,), wrong))
    assert replay.draw(500, 0.4).weights.min() == 1.0
    replay.update(np.arange(CAPACITY * T), torch.zeros(CAPACITY * T))
    assert replay.size == size, "what is no item has not become one"
    assert len(np.unique(replay.draw(2000, 0.4).ids)) == size


@pytest.mark.parametrize("which", ["last_action", "reward", "policy_version", "tasks", "origins"])
def test_rows_that_no_learner_would_have_taken_are_dropped_although_their_checksums_are_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    world, replay = filled(tmp_path)
    stored = world.stored([world.rollout(0), world.rollout(1)])
    stored.tasks = np.zeros(2, np.int64)
    wrong = {"last_action": 7, "reward": np.inf, "policy_version": -1, "tasks": 1, "origins": -9}[which]
    (stored.rows[which] if which in stored.rows.dtype.names else getattr(stored, which))[1] = wrong
    replay.insert(stored)
    good = replay.recover_rows()[:-1]
    other = again(tmp_path)
    assert other.recover_rows() == good
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    other.draw(100, 0.4)


def test_impossible_numbers_in_a_checkpoint_and_a_replay_that_cannot_hold_an_item_are_refused(tmp_path: Path) -> None:
    _, replay = filled(tmp_path / "run")
    for wrong in ({"inserted": -1}, {"inserted": 2**62}, {"largest": np.inf}):
        with pytest.raises(ValueError, match="impossible"):
            replay.load(replay.state() | wrong)
    world = World(STACKED, seed=1, streams=50)
    small = replay_of(world, tmp_path / "small", partial(BurnIn, burn_in=4 * T, length=4 * T), 4)
    with pytest.raises(ConfigError, match="replay_size"):
        insert(world, small, 50)
    with pytest.raises(ValueError, match="draw"):
        small.draw(1, 0.4)
