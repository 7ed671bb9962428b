"""The window that a batch needs, against a game of credits that knows no formula."""

import random
from math import ceil

import pytest

from services.learner.intake import window_needed

pytestmark = pytest.mark.unit


def stalls(batch: int, groups: int, envs: int, window: int, rng: random.Random) -> bool:
    """Play the rollout plane with groups that send whenever they may, in any order: does a batch stay incomplete?"""
    credit = [window] * groups
    queue: list[list[int]] = []  # [group, rows that are left] in order of arrival
    for _ in range(4 * envs):
        order = [group for group in range(groups) for _ in range(credit[group])]
        rng.shuffle(order)
        queue += [[group, envs] for group in order]
        credit = [0] * groups
        need = batch
        while need and queue:
            taken = min(need, queue[0][1])
            need -= taken
            queue[0][1] -= taken
            if not queue[0][1]:
                credit[queue.pop(0)[0]] += 1
        if need:
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_the_window_that_a_batch_needs_is_exactly_that(seed: int) -> None:
    rng = random.Random(seed)
    batch, groups, envs = rng.randint(1, 40), rng.randint(1, 4), rng.randint(1, 24)
    needed = window_needed(batch, groups, envs)
    assert not stalls(batch, groups, envs, needed, rng)
    if needed > 1:
        assert stalls(batch, groups, envs, needed - 1, rng)
    assert needed <= ceil(batch / envs) + 1
