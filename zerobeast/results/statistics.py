"""Statistics over a few runs or episodes: interquartile mean and 95 % bootstrap intervals (Agarwal et al. 2021).

The interval of a statistic is that of its percentiles over resampled runs. Of two runs it is the distance from the
lowest to the highest, of three about that: it shows how little is known rather than hiding it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 5_000
TWO_RUNS_NOTE = "of two runs: from the lowest to the highest"  #: what the interval is


def iqm(values: Any, axis: int = 0) -> Any:
    """The mean without the lowest and the highest quarter, rounded down: of less than four it is that of all."""
    from scipy.stats import trim_mean

    return trim_mean(values, 0.25, axis)


def interval(values: Values, statistic: Callable[..., Any]) -> tuple[Any, Any]:
    """The lower and upper end of a statistic's bootstrap interval.

    Args:
      values: [runs, ...], at least two.
      statistic: (values, axis) -> values without that axis.
    """
    from scipy.stats import bootstrap

    rng = np.random.default_rng(0)  # the same picture for the same runs
    found = bootstrap(
        (values,), statistic, n_resamples=RESAMPLES, batch=500, confidence_level=LEVEL, method="percentile", rng=rng
    )
    return found.confidence_interval.low, found.confidence_interval.high
