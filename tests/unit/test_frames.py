"""Frame stacks rebuilt from single frames, against a stack kept frame by frame as a broker keeps it."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import Tensor

from zerobeast.rl.ops.frames import stack_frames


def unroll(firsts: list[bool], k: int, *, warm_up: int = 0) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Frames that count up, the `first` flags, and the stack that the policy saw at each step.

    `warm_up` steps of an older episode come before the unroll.
    """
    stack: deque[int] = deque(maxlen=k)
    seen = []
    for index, first in enumerate([True, *[False] * (warm_up - 1), *firsts] if warm_up else firsts):
        stack.extend([index + 1] * (k if first or not stack else 1))
        seen.append(list(stack))
    seen = seen[warm_up:]
    frames = seen[0][:-1] + [stack[-1] for stack in seen]
    return torch.tensor([frames], dtype=torch.uint8), torch.tensor([firsts]), seen


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("warm_up", [0, 1, 2, 9])
@pytest.mark.parametrize(
    "firsts",
    [
        [False, False, False, False, False, False],
        [True, False, False, False, False, False],
        [False, True, False, False, False, False],
        [False, False, False, True, False, False],
        [False, False, False, False, False, True],
        [False, True, True, False, False, False],
        [True, True, True, True, True, True],
        [False, True, False, True, False, False],
        [True, False, True, False, False, True],
    ],
)
def test_stacks_are_those_that_the_policy_got(firsts: list[bool], warm_up: int, k: int) -> None:
    frames, first, seen = unroll(firsts, k, warm_up=warm_up)
    stacks = stack_frames(frames, first, k)
    assert stacks.dtype == torch.uint8
    assert stacks[:, 0].tolist() == seen


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_independent_of_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [unroll((rng.random(8) < 0.3).tolist(), 4, warm_up=int(rng.integers(0, 6))) for _ in range(5)]
    stacks = stack_frames(torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows]), 4)
    for index, (_, _, seen) in enumerate(rows):
        assert stacks[:, index].tolist() == seen


def test_pictures_keep_their_pixels() -> None:
    frames = torch.arange(2 * 7 * 3 * 5).view(2, 7, 3, 5)
    first = torch.zeros(2, 4, dtype=torch.bool)
    first[1, 2] = True
    stacks = stack_frames(frames, first, 4)
    assert stacks.shape == (4, 2, 4, 3, 5)
    assert stacks.is_contiguous()
    assert torch.equal(stacks[3, 0], frames[0, 3:7])
    assert torch.equal(stacks[3, 1], frames[1, [5, 5, 5, 6]])


def test_without_a_stack_only_time_moves_to_the_front() -> None:
    frames = torch.arange(2 * 4 * 3).view(2, 4, 3)
    stacks = stack_frames(frames, torch.ones(2, 4, dtype=torch.bool), 1)
    assert torch.equal(stacks, frames.transpose(0, 1))


def test_rows_may_lie_apart_in_memory() -> None:
    record = np.dtype({"names": ["obs"], "formats": [("|u1", (6, 2))], "offsets": [8], "itemsize": 64})
    rows = np.zeros(3, record)
    rows["obs"] = np.arange(36).reshape(3, 6, 2)
    stacks = stack_frames(torch.from_numpy(rows["obs"]), torch.zeros(3, 4, dtype=torch.bool), 3)
    assert stacks[2, 1].flatten().tolist() == [16, 17, 18, 19, 20, 21]


def test_frames_that_do_not_fit_the_steps_are_refused() -> None:
    with pytest.raises(AssertionError, match="frames"):
        stack_frames(torch.zeros(2, 6, 3), torch.zeros(2, 4, dtype=torch.bool), 4)
