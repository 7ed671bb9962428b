"""Frame stacks (`zerobeast.common.wire.stacks`) as tensors: rebuilt from single frames, and taken apart again."""

import torch
from torch import Tensor


def stack_frames(frames: Tensor, first: Tensor, k: int) -> Tensor:
    """The stacks that the policy got in an unroll.

    One strided copy makes the stack of every step as if no episode had begun; the few stacks that then reach back
    across the start of an episode get its first frame instead.

    Args:
      frames: [B, T + k, *frame] as in `common.wire.records.rollout_record`: frames[:, k - 1 + t] came with step t, and
        the k - 1 before that of step 0 complete its stack.
      first: [B, T + 1] bool, True where a step opens an episode; best on the CPU, wherever `frames` are.
      k: frames of a stack.

    Returns:
      [T + 1, B, k, *frame], the oldest frame first; [T + 1, B, *frame] for k == 1. Of the dtype of `frames`.
    """
    n_steps = first.shape[1]
    assert frames.shape[:2] == (len(first), n_steps - 1 + k), "expected frames [B, T + k, ...] and first [B, T + 1]"
    if k == 1:
        return frames.transpose(0, 1).contiguous()
    windows = frames.unfold(1, k, 1)  # [B, T + 1, *frame, k], a view
    stacks = windows.movedim(-1, 2).transpose(0, 1).contiguous()
    for row, start in torch.nonzero(first[:, 1:]).tolist():  # by row, then by step: later episodes win
        opening = frames[row, start + k]
        for age in range(min(k - 1, n_steps - 1 - start)):
            stacks[start + 1 + age, row, : k - 1 - age] = opening
    return stacks


def single_frames(stacks: Tensor) -> Tensor:
    """Each frame of an unroll once, from which `stack_frames` rebuilds the same stacks.

    Args:
      stacks: [T + 1, B, k, *frame].

    Returns:
      [T + k, B, *frame], time-major: the stack of step 0, then the newest frame of each later step.
    """
    return torch.cat([stacks[0].transpose(0, 1), stacks[1:, :, -1]])


def push_frame(first: Tensor, frame: Tensor, stacks: Tensor) -> Tensor:
    """The stacks one step later.

    Args:
      first: [N] bool, the frame opens an episode.
      frame: [N, *frame], the newest.
      stacks: [N, k, *frame] of the step before.

    Returns:
      [N, k, *frame].
    """
    newest = frame.unsqueeze(1)
    return torch.where(first.view(-1, *[1] * frame.ndim), newest, torch.cat([stacks[:, 1:], newest], 1))
