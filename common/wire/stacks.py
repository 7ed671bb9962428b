"""Frame stacks: policies get the newest k frames of an episode, the oldest first.

Early in an episode its first frame stands for those that are missing, as in gymnasium's `FrameStackObservation`.
Frames are sent and stored once each: T steps of one environment have T + k frames, of which frames[t] to
frames[t + k - 1] are the stack of step t if no episode begins in them, and always that of step 0.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stack_places(first: NDArray[Any], rows: NDArray[np.intp], ts: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """[N, k]: the places among the T + k frames of a row that make the stack of a step.

    Args:
      first: [M, T + 1] bool, or bytes of 0 and 1: which steps of M rows open an episode.
      rows: [N], which of the M rows.
      ts: [N] from 0 to T: which step of each.
      k: frames of a stack.
    """
    steps = np.maximum(ts[:, None] - np.arange(k - 1), 0)
    opened = np.where(first[rows[:, None], steps], steps, 0).max(
        axis=1, initial=0
    )  # 0: only the stack of step 0 has it
    earliest = np.where(opened > 0, opened + k - 1, 0)
    places: NDArray[np.intp] = np.maximum(ts[:, None] + np.arange(k), earliest[:, None])
    return places


def push_frames(
    stacks: NDArray[Any], frames: NDArray[Any], chosen: NDArray[np.bool_], first: NDArray[np.bool_]
) -> None:
    """Add the newest frames to the stacks of some environments, in place.

    Args:
      stacks: [N, k, *frame].
      frames: [N, *frame].
      chosen: [N], the environments that have a new frame.
      first: [N], those that begin an episode.
    """
    within, opens = chosen & ~first, chosen & first
    stacks[within, :-1] = stacks[within, 1:]
    stacks[within, -1] = frames[within]
    stacks[opens] = frames[opens, None]
