import numpy as np

from zerobeast.services.envserver.vector import EpisodeTracker

NO, YES = np.array([False, False]), np.array([True, True])
FIRST_ONLY = np.array([True, False])


def test_an_episode_counts_its_unclipped_rewards_and_its_agent_steps() -> None:
    statistics = EpisodeTracker(2)
    assert statistics.update(np.array([10.0, 1.0]), NO, NO) == []
    assert statistics.update(np.array([-3.0, 1.0]), NO, FIRST_ONLY) == [[7.0, 2]]
    assert statistics.update(np.array([0.0, 1.0]), FIRST_ONLY, ~FIRST_ONLY) == [[3.0, 3]]
    assert statistics.update(np.array([5.0, 0.0]), ~FIRST_ONLY, FIRST_ONLY) == [[5.0, 1]], "a void row is no step"


def test_sums_are_exact_where_float32_would_lose_the_small_ones() -> None:
    statistics = EpisodeTracker(1)
    statistics.update(np.array([2.0**24], np.float32), NO[:1], NO[:1])
    assert statistics.update(np.array([1.0], np.float32), NO[:1], YES[:1]) == [[2.0**24 + 1, 2]]


def test_forgotten_episodes_are_never_reported() -> None:
    statistics = EpisodeTracker(2)
    statistics.update(np.array([1.0, 2.0]), NO, NO)
    statistics.forget(FIRST_ONLY)
    assert statistics.update(np.array([1.0, 2.0]), NO, YES) == [[1.0, 1], [4.0, 2]]
    statistics.update(np.array([1.0, 2.0]), NO, NO)
    statistics.forget(slice(None))
    assert statistics.update(np.array([0.5, 0.5]), NO, YES) == [[0.5, 1], [0.5, 1]]
