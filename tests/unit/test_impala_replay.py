"""Old rollouts in IMPALA's batches: which, how many, in whose memory, and that they survive a restart."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from tests.build.batches import B, T, algorithm_of, make_batch, weights
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.algos.impala import algorithm as module
from zerobeast.rl.algos.impala.algorithm import OldRollouts
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.gradient_descent import GradientDescent
from zerobeast.rl.ops.frames import stack_frames
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.testing.small_run import same

K = 3
STACKED = EnvSpec("Stacked-v0", ArraySpace.box((5,)), ArraySpace.discrete(3), frame_stack=K)
impala = partial(algorithm_of, "impala", learning_rate=0.01, schedule="constant")
old_rollouts = partial(OldRollouts, device=torch.device("cpu"))


def numbered(algorithm: Any, first: int, *, rows: int = B, steps: int = T) -> Batch:
    """Random rows, each with a number of its own as its first reward, from `first` on."""
    batch = make_batch(algorithm, seed=first, rows=rows, steps=steps)
    batch.reward[0] = torch.arange(first, first + rows)
    return batch._replace(task=torch.arange(rows))


def numbers(batch: Batch) -> list[int]:
    return [int(number) for number in batch.reward[0]]


def alone(batch: Batch, at: int) -> Batch:
    """One row, taken field by field, to be independent of how rows are picked."""
    whole = {"core_state": batch.core_state, "task": batch.task, "origin": batch.origin}
    steps: Batch = tree_map(lambda entry: entry[:, at : at + 1], batch._replace(**dict.fromkeys(whole, batch.mask)))
    return steps._replace(**{name: entry[at : at + 1] for name, entry in whole.items()})


def with_stacks(algorithm: Any, first: int) -> Batch:
    """Like `numbered`, but with stacks of K frames in which episodes begin."""
    batch = numbered(algorithm, first)
    begins = torch.rand(T + 1, B, generator=torch.Generator().manual_seed(first)) < 0.3
    frames = torch.randn(B, T + K, *algorithm.env.obs.shape)
    return batch._replace(obs=stack_frames(frames, begins.T, K), first=begins)


def seen(learning: Any, batch: Batch) -> list[Batch]:
    """Do one update; returns the batch that the loss of each step was computed from."""
    found, real = list[Batch](), module.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loss", lambda *args, **more: (found.append(args[3]), real(*args, **more))[1])
        learning.update(batch, 0)
    return found


@pytest.mark.parametrize("settings", [{"replay_share": 0.5}, {"uses": 2, "batches": 2}], ids=["replay", "uses"])
def test_held_batches_store_each_frame_once_and_are_learned_from_unchanged(settings: dict[str, Any]) -> None:
    algorithm = impala(STACKED, net={"core": "lstm"}, **settings)
    learning = algorithm.learning(algorithm.network())
    batches = [with_stacks(algorithm, first) for first in (0, 4)]
    kept = [batch.copy() for batch in batches]
    learning.update(batches[0], 0)
    assert kept[0].core_state.any()
    for entry in leaves(batches[0]):
        entry.zero_()  # the caller reuses its memory
    state = learning.state()
    [held] = state["batches"] or state["replay"]["held"]
    assert held["obs"].shape == (T + K, B, *STACKED.obs.shape)
    found = seen(learning, batches[1])
    by_number = {int(each.reward[0, at]): alone(each, at) for each in kept for at in range(B)}
    assert any(number < B for each in found for number in numbers(each)), "an old one is among them"
    for each in found:
        for at, number in enumerate(numbers(each)):
            assert same(leaves(alone(each, at)), leaves(by_number[number]))
    again = algorithm.learning(algorithm.network())
    again.load(state)
    assert all(same(leaves(one), leaves(two)) for one, two in zip(seen(again, batches[1]), found, strict=True))


@pytest.mark.parametrize(("share", "old"), [(0.5, 4), (0.2, 1), (0.9, 36)])
def test_the_share_is_of_the_whole_batch_and_the_new_rows_are_all_there(share: float, old: int) -> None:
    algorithm, replay = impala(), old_rollouts(share, 100, seed=1)
    assert numbers(replay.mix(numbered(algorithm, 0))) == [0, 1, 2, 3], "there is nothing old yet"
    mixed = numbers(replay.mix(numbered(algorithm, 4)))
    assert mixed[:B] == [4, 5, 6, 7]
    assert len(mixed) == B + old
    assert set(mixed[B:]) <= {0, 1, 2, 3}, "a batch does not meet itself"
    assert numbers(replay.mix(numbered(algorithm, 8, steps=T + 2))) == [8, 9, 10, 11], "of another length"


def test_a_restart_keeps_the_remainder_of_rounding_and_with_less_room_the_newest() -> None:
    algorithm, replay, resumed = impala(), *(old_rollouts(0.1, 100, seed=1) for _ in range(2))
    replay.mix(numbered(algorithm, 0))  # leaves 0.44 of a row over, so that the next batch gets one
    resumed.load(replay.state())
    sizes = [each.mix(numbered(algorithm, 4)).mask.shape[1] - B for each in (replay, resumed)]
    assert sizes == [1, 1]
    smaller = old_rollouts(0.75, 3, seed=1)
    smaller.load(replay.state())
    assert set(numbers(smaller.mix(numbered(algorithm, 8)))[B:]) == {5, 6, 7}


def test_the_oldest_leave_first_and_the_rest_is_drawn_with_equal_chances() -> None:
    algorithm, replay = impala(), old_rollouts(0.5, 10, seed=1)
    drawn: Counter[int] = Counter()
    for first in range(0, 4000, B):
        mixed = numbers(replay.mix(numbered(algorithm, first, steps=1)))
        drawn.update(first - number for number in mixed[B:] if first >= 12)
    expected = sum(drawn.values()) / 10
    assert set(drawn) == set(range(1, 11)), "the ten before this batch"
    chi_squared = sum((count - expected) ** 2 / expected for count in drawn.values())
    assert chi_squared < 27.9, "nine degrees of freedom: one seed in a thousand"


def test_one_step_on_the_mixture_is_one_step_on_the_sum_of_the_losses_of_its_rows() -> None:
    algorithm = impala(replay_share=0.5)
    config, new, old = algorithm.config, numbered(algorithm, 4), numbered(algorithm, 0)
    net, other = algorithm.network(), algorithm.network()
    learning, descent = algorithm.learning(net), GradientDescent(config, config.algorithm, other.parameters())
    learning.update(old, 0)
    descent.step(algorithm.loss(other, old)[0], 0)
    [mixed] = seen(learning, new)
    before = weights(other)
    losses = [algorithm.loss(other, alone(old, pick))[0] for pick in numbers(mixed)[B:]]
    descent.step(algorithm.loss(other, new)[0] + sum(losses), 0)
    for first, one, two in zip(before, weights(net), weights(other), strict=True):
        torch.testing.assert_close(one - first, two - first, rtol=1e-3, atol=1e-6)
        assert not torch.equal(one, first)
