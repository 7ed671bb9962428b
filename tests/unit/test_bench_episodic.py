"""`beast bench episodic`: whose observations have which label, and how signals are judged."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from tests.build.batches import VECTORS
from zerobeast.common.errors import ConfigError
from zerobeast.tools.bench.episodic import Seen, _judged, play
from zerobeast.tools.throwaway_run import settings


class Maps(gymnasium.Env[np.ndarray, int]):
    """Episodes of 1 to 9 steps, all of whose observations are the number of their map."""

    observation_space, action_space = Box(0, 255, (1,), np.uint8), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._map, self._left = (int(number) for number in self.np_random.integers([1, 1], [9, 10]))
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        return self._seen(), 0.0, not self._left, False, {"map": self._map}

    def _seen(self) -> np.ndarray:
        return np.array([self._map], np.uint8)


def test_every_observation_has_the_label_of_its_own_episode() -> None:
    config = settings([f"--env={__name__}:Maps"])
    seen = play(config, 400, "map")
    assert len(seen.labels) >= 400
    assert (seen.obs[:, 0].numpy() == seen.labels).all()
    assert set(seen.labels) == set(range(1, 9))
    with pytest.raises(ConfigError, match=r"--label room: .*:Maps has no such info, expected map"):
        play(config, 1, "room")


def test_a_signal_is_judged_by_the_means_of_labels() -> None:
    labels = np.repeat([0, 1, 2], [160, 36, 4])
    correlation, rare = _judged("it", torch.from_numpy(labels / 2), Seen(VECTORS, torch.zeros(200, 1), labels))
    assert correlation.value == pytest.approx(-1)
    assert (rare.value, rare.yardstick) == (pytest.approx(20), pytest.approx(2)), "all 4 of 2 % are among the first 20"
