import numpy as np

from zerobeast.common.wire.episodes import MAX_NUMBERS, lightened
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


def test_of_too_many_infos_those_of_evenly_spaced_episodes_travel() -> None:
    few = [[float(env), 1, {"x": 1.0}] for env in range(MAX_NUMBERS)]
    assert lightened(few) == few
    many = [[float(env), 1, *([{str(name): 1.0 for name in range(20)}] if env % 3 else [])] for env in range(90)]
    found = lightened(many)
    assert [entry[:2] for entry in found] == [entry[:2] for entry in many]
    having = [env for env, entry in enumerate(found) if len(entry) > 2]
    assert len(having) == MAX_NUMBERS // 20
    assert max(np.diff([0, *having, 90])) <= 6
