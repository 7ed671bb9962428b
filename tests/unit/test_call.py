"""Numbers of numpy in a call from Python are numbers in its flags."""

import numpy as np

from zerobeast.common.config.flags import flags_for


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"seed": np.int64(3), "net.hidden_sizes": np.array([4, 5]), "env": {"kwargs": {"size": [np.float32(0.5)]}}}
    assert flags_for(given) == ["--seed=3", "--net.hidden_sizes=[4, 5]", '--env.kwargs={"size": [0.5]}']
