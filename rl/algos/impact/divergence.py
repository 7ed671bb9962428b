"""Adaptive weight of KL(target || policy), set once per target (Schulman et al. 2017, section 4; numbers: RLlib)."""

from typing import Any

FLOOR, CEILING = 0.01, 100.0  #: of the weight, relative to its initial value: at most a dozen targets lead back


class DivergenceWeight:
    """Adapts to the mean divergence over all steps of one target, as RLlib does over an iteration.

    One step's divergence says little: it is 0 in a target's first step and largest in its last, and differs by batch.

    Args:
      initial: the weight at the start; 0: there is none, and it never adapts.
      aim: the mean divergence that it should result in.
    """

    def __init__(self, initial: float, aim: float) -> None:
        self._initial, self._aim = initial, aim
        self._scale = 1.0  #: factor on the initial weight
        self._sum, self._count = 0.0, 0  #: of divergences since the target was replaced

    @property
    def value(self) -> float:
        """The weight."""
        return self._initial * self._scale

    def observe(self, kl: float) -> None:
        """Add the divergence of a step."""
        self._sum += kl
        self._count += 1

    def adapt(self) -> None:
        """Call when the target is replaced: change the weight if the mean was above twice or below half its aim."""
        mean = self._sum / self._count
        self._sum, self._count = 0.0, 0
        if mean > 2 * self._aim:
            self._scale = min(1.5 * self._scale, CEILING)
        elif mean < 0.5 * self._aim:
            self._scale = max(0.5 * self._scale, FLOOR)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"scale": self._scale, "sum": self._sum, "count": self._count}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._scale = min(max(float(state["scale"]), FLOOR), CEILING)
        self._sum, self._count = float(state["sum"]), int(state["count"])
