"""What is learned from the same batches after each of several changes to them, such as where their episodes end."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from zerobeast.services.actor.rollout import Rows
from zerobeast.testing.small_run import SmallRun, Subject, T, first_env


def twins(
    subject: Subject,
    settings: dict[str, Any],
    *changes: Callable[[list[Rows]], None],
    ends: float = 0.4,
    total_steps: int = 100_000,
) -> list[list[Tensor]]:
    """What is learned from the same batches after each of these changes to copies of them."""
    played: list[Rows] = []
    found = []
    for change in changes:
        with SmallRun(subject, first_env(subject), settings, total_steps=total_steps) as run:
            played = played or run.rollouts(3, ends=ends)
            batches = [rows.copy() for rows in played]
            change(batches)
            found.append(run.learn_from(batches))
    return found


def end(at: int, batches: list[Rows], *, died: bool, cut: bool, shift: float) -> None:
    """Have every row of batches without ends end at transition `at`, on an observation that is shifted."""
    for rows, after in zip(batches, [*batches[1:], None], strict=True):
        rows["terminated"][:, at + 1], rows["truncated"][:, at + 1] = died, cut
        rows["obs"][:, at + 1] += shift
        begin(rows, at + 2)
        if after is not None:
            for name in ("obs", "terminated", "truncated"):
                after[name][:, 0] = rows[name][:, -1]
            begin(after, at + 2 - T)


def begin(rows: Rows, at: int) -> None:
    """Have every row begin an episode with observation `at`, if it is one of its own."""
    if 0 < at <= T:
        rows["first"][:, at], rows["reward"][:, at] = True, 0.0
