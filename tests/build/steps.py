"""Steps of environments as their rows, for what counts episodes."""

from collections.abc import Sequence

import numpy as np

from zerobeast.common.wire import ArraySpace, EnvSpec, step_record

MANY = 1000  #: steps
DTYPE = step_record(EnvSpec("x", ArraySpace.box(()), ArraySpace.discrete(2))).dtype


def rows(
    reward: list[float], *, ended: Sequence[int] = (), cut: Sequence[int] = (), first: Sequence[int] = ()
) -> np.ndarray:
    """One step of N environments: which of them ended, were cut off, or began."""
    step = np.zeros(len(reward), DTYPE)
    step["reward"] = reward
    for name, marked in (("terminated", ended), ("truncated", cut), ("first", first)):
        step[name][list(marked)] = True
    return step
