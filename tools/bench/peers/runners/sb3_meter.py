"""The meter as a callback of Stable-Baselines3."""

from __future__ import annotations

from meter import Meter  # beside this script
from stable_baselines3.common.callbacks import BaseCallback

NEVER = 10**9  #: agent steps; the meter ends the training


class RateCallback(BaseCallback):
    """Reports each finished update to the meter.

    Args:
      meter: the clock.
      learning_starts: agent steps before the first update.
    """

    def __init__(self, meter: Meter, learning_starts: int = 0) -> None:
        super().__init__()
        self._meter = meter
        self._learning_starts = learning_starts
        self._over = False

    def _on_rollout_start(self) -> None:  # agent steps: the environment itself skips frames
        self._over = self._meter.saw(max(0, self.num_timesteps - self._learning_starts))

    def _on_step(self) -> bool:
        return not self._over
