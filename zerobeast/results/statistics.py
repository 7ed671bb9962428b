"""Statistics over a few runs: mean, interquartile mean, and their 95 % bootstrap intervals (Agarwal et al. 2021).

The interval of a statistic is that of its percentiles over resampled runs. Of three runs it is about the distance from
the lowest to the highest: it shows how little is known rather than hiding it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Statistic = Callable[..., Any]  #: (*samples, axis) -> values without that axis

LEVEL = 0.95
RESAMPLES = 5_000


def mean(*samples: Values, axis: int = 0) -> Any:
    """The mean over all samples."""
    return np.concatenate(samples, axis).mean(axis)


def iqm(*samples: Values, axis: int = 0) -> Any:
    """The mean without the lowest and the highest quarter, rounded down: of less than four it is that of all."""
    from scipy.stats import trim_mean

    return trim_mean(np.concatenate(samples, axis), 0.25, axis)


def median(*samples: Values, axis: int = 0) -> Any:
    """The median over all samples."""
    return np.median(np.concatenate(samples, axis), axis)


def interval(values: Values | list[Values], statistic: Statistic) -> tuple[Any, Any]:
    """The lower and upper end of a statistic's bootstrap interval.

    Args:
      values: [runs, ...], at least two; or several such samples, each of which is resampled by itself.
      statistic: of all samples.
    """
    from scipy.stats import bootstrap

    found = bootstrap(
        tuple(values) if isinstance(values, list) else (values,),
        statistic,
        n_resamples=RESAMPLES,
        batch=500,
        vectorized=True,
        axis=0,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),  # the same picture for the same runs
    )
    return found.confidence_interval.low, found.confidence_interval.high
