"""Frame stacks rebuilt from single frames, against a stack kept frame by frame as a broker keeps it."""

from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from zerobeast.rl.ops.frames import stack_frames

STEPS = 6
ROW = st.tuples(st.lists(st.booleans(), min_size=STEPS, max_size=STEPS), st.sampled_from([0, 1, 2, 9]))


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


@given(st.lists(ROW, min_size=1, max_size=4), st.integers(1, 4))
def test_stacks_are_those_the_policy_got_whatever_is_in_other_rows(rows: list[tuple[list[bool], int]], k: int) -> None:
    unrolls = [unroll(firsts, k, warm_up=warm_up) for firsts, warm_up in rows]
    frames, first = (torch.cat([each[part] for each in unrolls]) for part in range(2))
    stacks = stack_frames(frames, first, k).view(STEPS, len(rows), k)
    assert stacks.dtype == torch.uint8
    pictures = stack_frames(frames[..., None, None].expand(-1, -1, 2, 3), first, k)
    assert pictures.view(STEPS, len(rows), k, 6).equal(stacks[..., None].expand(-1, -1, -1, 6))
    for row, (_, _, seen) in enumerate(unrolls):
        assert stacks[:, row].tolist() == seen
