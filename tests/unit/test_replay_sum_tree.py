"""A sum tree against plain sums, and its draws against their probabilities."""

import numpy as np
import pytest

from tests.build.replays import chi_square
from zerobeast.rl.replay.sum_tree import SumTree

SIZES = (1, 16, 17, 5000, 70_000)  #: with none, one and two levels above the items


@pytest.mark.parametrize("n", SIZES)
def test_the_total_is_exact_after_any_number_of_updates(n: int) -> None:
    rng = np.random.default_rng(n)
    tree, mirror = SumTree(n), np.zeros(n)
    for _ in range(300):
        ids = rng.integers(0, n, 50)
        weights = 10.0 ** rng.integers(-9, 9, 50) * rng.random(50)
        tree.set(ids, weights)
        mirror[ids] = weights
    assert np.array_equal(tree.weights[:n], mirror)
    assert tree.total == pytest.approx(mirror.sum(), rel=1e-14)
    tree.set(np.arange(n), 0.0)
    assert tree.total == 0.0, "nothing of what was there before is left"
    with pytest.raises(ValueError, match="draw"):
        tree.find(np.zeros(1))


@pytest.mark.parametrize("n", SIZES)
def test_items_are_drawn_as_often_as_they_weigh(n: int) -> None:
    rng = np.random.default_rng(n)
    tree, live = SumTree(n), np.unique(rng.integers(0, n, 40))
    weights = rng.random(len(live)) ** 3 + 0.01
    tree.set(live, weights)
    for points in (rng.random(200_000) * tree.total, tree.draw_strata(200_000, rng)):
        found, counts = np.unique(tree.find(points), return_counts=True)
        assert np.array_equal(found, live)
        if len(live) > 1:
            assert chi_square(counts, 200_000 * weights / weights.sum()) < 4.0


@pytest.mark.parametrize("n", SIZES)
def test_points_at_the_very_ends_find_items_of_some_weight(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(30):
        tree, live = SumTree(n), np.unique(rng.integers(0, n, 7))
        weights = 10.0 ** rng.integers(-300, 300, len(live)).astype(float)
        tree.set(live, weights)
        total = tree.total
        ends = [0.0, total, 2 * total, np.nextafter(total, 0), *np.cumsum(weights), *rng.random(20) * total]
        assert np.isin(tree.find(np.array(ends)), live).all()
