"""What a call from Python gives arrives in its flags as it is, or is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerobeast.common.config.flags import flags_for
from zerobeast.common.errors import ConfigError


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"seed": np.int64(3), "net.hidden_sizes": np.array([4, 5]), "env": {"kwargs": {"size": [np.float32(0.5)]}}}
    assert flags_for(given) == ["--seed=3", "--net.hidden_sizes=[4, 5]", '--env.kwargs={"size": [0.5]}']


def test_arguments_may_be_tuples_and_arrays_which_arrive_as_lists() -> None:
    given = {"env.kwargs": {"size": (84, 84), "prices": np.array([[0.5]], np.float32), "on": np.True_, "none": None}}
    assert flags_for(given) == ['--env.kwargs={"size": [84, 84], "prices": [[0.5]], "on": true, "none": null}']


@pytest.mark.parametrize(
    ("kwargs", "place"),
    [
        ({"levels": {1: 0.5}}, "env.kwargs.levels has the key 1"),
        ({"walls": [{(1, 2): "stone"}]}, r"env.kwargs.walls\[0\] has the key \(1, 2\)"),
        ({"walls": {np.int64(3): 1}}, "env.kwargs.walls has the key"),
        ({"folder": Path("maps")}, "env.kwargs.folder is PosixPath"),
        ({"names": {"a", "b"}}, "env.kwargs.names is {"),
        ({"raw": b"ab"}, "env.kwargs.raw is b'ab'"),
        ({"rates": np.array([0.5, np.nan])}, r"env.kwargs.rates\[1\] is nan"),
        ({"objects": np.array([{1}], object)}, r"env.kwargs.objects\[0\] is {1}"),
        ({"entropy": 1 << 127}, "env.kwargs.entropy is 1701"),
    ],
)
def test_arguments_that_would_arrive_otherwise_are_refused(kwargs: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=f"^{place}"):
        flags_for({"env": {"kwargs": kwargs}})
