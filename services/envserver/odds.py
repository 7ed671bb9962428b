"""How likely each of some ranks is drawn: the levels of Zipfian tasks (Chan et al. 2022, arXiv:2203.08222)."""

import numpy as np
from numpy.typing import NDArray

LEVELS = ("zipf", "uniform", "rare")


def odds(n: int, level: str, exponent: float) -> NDArray[np.float64]:
    """[n] probabilities: in proportion to rank^-exponent, equal, or equal among the last fifth and 0 for all others."""
    weights = np.arange(1.0, n + 1) ** -(exponent if level == "zipf" else 0.0)
    if level == "rare":
        weights[: -max(1, n // 5)] = 0
    return np.asarray(weights / weights.sum())
