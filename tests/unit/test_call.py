"""What a call from Python gives arrives in its flags as it is, or is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.errors import refused
from zerobeast.common.config.flags import flags_for


def test_numbers_of_numpy_are_numbers_and_tuples_and_arrays_arrive_as_lists() -> None:
    kwargs = {"size": (84, np.float32(0.5)), "prices": np.array([[0.5]], np.float32), "on": np.True_, "none": None}
    given = {"seed": np.int64(3), "net.hidden_sizes": np.array([4, 5]), "env": {"kwargs": kwargs}}
    arguments = '{"size": [84, 0.5], "prices": [[0.5]], "on": true, "none": null}'
    assert flags_for(given) == ["--seed=3", "--net.hidden_sizes=[4, 5]", f"--env.kwargs={arguments}"]


@pytest.mark.parametrize(
    ("kwargs", "place"),
    [
        ({"levels": {1: 0.5}}, "levels"),
        ({"walls": {np.int64(3): 1}}, "walls"),
        ({"folder": Path("maps")}, "folder"),
        ({"names": {"a", "b"}}, "names"),
        ({"rates": np.array([0.5, np.nan])}, "rates[1]"),
        ({"objects": np.array([{1}], object)}, "objects[0]"),
        ({"entropy": 1 << 127}, "entropy"),
    ],
)
def test_arguments_that_would_arrive_otherwise_are_refused(kwargs: dict[str, Any], place: str) -> None:
    with refused(f"env.kwargs.{place}"):
        flags_for({"env": {"kwargs": kwargs}})
