"""Slots: numbers are handed out and taken back, and every environment's memory is its own."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import as_bits
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.acting.slots import SlotRanges, SlotState

CPU = torch.device("cpu")


def env(shape: tuple[int, ...] = (2, 3), dtype: str = "|u1", stack: int = 3) -> EnvSpec:
    return EnvSpec("Test-v0", ArraySpace.box(shape, dtype), ArraySpace.discrete(4), frame_stack=stack)


def words(frames: np.ndarray) -> torch.Tensor:
    """Frames [B, ...] as they stand in a row: each padded to 8 bytes."""
    flat = np.ascontiguousarray(frames).reshape(len(frames), -1).view(np.uint8)
    padded = np.full((len(frames), -(-flat.shape[1] // 8) * 8), 255, np.uint8)
    padded[:, : flat.shape[1]] = flat
    return torch.from_numpy(padded).view(torch.int64)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(0, 2**6 - 1)), min_size=1, max_size=25),
    st.sampled_from(["|u1", "<f4", "<i2", "|b1"]),
    st.sampled_from([(), (1,), (5,), (3, 3), (2, 2, 2)]),
)
def test_stacks_equal_those_built_from_a_list_of_frames(
    stack: int, steps: list[tuple[set[int], int]], dtype: str, shape: tuple[int, ...]
) -> None:
    state = SlotState(env(shape, dtype, stack), 0, 6, CPU)
    episodes: dict[int, list[np.ndarray]] = {}
    rng = np.random.default_rng(0)
    for present, resets in steps:
        slots = sorted(present)
        state.reserve(slots[-1] + 1)  # growing keeps what is there
        first = [slot not in episodes or bool(resets >> slot & 1) for slot in slots]
        frames = rng.integers(0, 2 if dtype == "|b1" else 100, (len(slots), *shape)).astype(dtype)
        for slot, begins, frame in zip(slots, first, frames, strict=True):
            episodes[slot] = [frame] * stack if begins else [*episodes[slot], frame]
        expected = np.stack([np.stack(episodes[slot][-stack:]) for slot in slots])
        sent = words(as_bits(frames, len(shape)) if dtype == "|b1" else frames)
        stacks = state.push(torch.tensor(slots), sent, torch.tensor(first)).numpy()
        assert stacks.dtype == expected.dtype
        np.testing.assert_array_equal(stacks, expected if stack > 1 else expected[:, 0])


def test_actions_and_states_are_recalled_and_zero_at_first_also_when_there_are_more_slots() -> None:
    spec = EnvSpec("Test-v0", ArraySpace.box((2,)), ArraySpace("multi_discrete", shape=(2,), sizes=(3, 4)))
    state = SlotState(spec, 2, 4, CPU)
    state.reserve(3)
    cores = torch.tensor([[1.0, torch.nan], [5.0, 6.0]])
    state.remember(torch.tensor([0, 2]), torch.tensor([[2, 3], [1, 1]]), cores)
    state.reserve(100)
    action, core = state.recall(torch.tensor([2, 0, 1]), torch.tensor([False, True, False]))
    assert action.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert core.tolist() == [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0]], "no number outlives its episode"


def test_growing_is_rare_and_its_memory_is_known_before() -> None:
    frames, age, action, core = 3 * 8, 8, 8, 4 * 512
    assert SlotState(env(), 512, 4, CPU).bytes_per_slot() == frames + age + action + core
    state, sizes = SlotState(env(), 0, 4, CPU), set()
    for needed in range(1, 1000):
        state.reserve(needed)
        assert state.size >= needed
        sizes.add(state.size)
    assert len(sizes) < 25


@given(st.lists(st.one_of(st.integers(1, 6), st.just(None)), max_size=60), st.randoms())
def test_no_number_is_handed_out_twice(orders: list[int | None], rng) -> None:
    ranges = SlotRanges(20)
    held: list[range] = []
    for n in orders:
        if n is not None:
            found = ranges.allocate(n)
            taken = {number for other in held for number in other}
            if found is None:
                free = "".join(" " if number in taken else "x" for number in range(20)).split()
                assert max(map(len, free), default=0) < n, "only a gap that is too short is refused"
            else:
                assert len(found) == n
                assert taken.isdisjoint(found)
                assert found.stop <= 20
                held.append(found)
        elif held:
            ranges.release(held.pop(rng.randrange(len(held))))
    for other in held:
        ranges.release(other)
    assert ranges.allocate(20) == range(20)
