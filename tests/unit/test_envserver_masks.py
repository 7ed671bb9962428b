from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from zerobeast.common.errors import EnvError
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.services.envserver.reading import mask_of, without_mask

ACTION = CompositeSpace(
    "dict", (Part("go", ArraySpace.discrete(2)), Part("aim", ArraySpace.box((1,))), Part("who", ArraySpace.discrete(3)))
)


@pytest.mark.parametrize(
    ("obs", "info"),
    [
        ({"legal": np.array([1, 0, 1, 1, 0])}, {}),
        ({}, {"legal": np.array([True, False, True, True, False])}),
        (np.zeros(3), {"legal": (np.array([1, 0], np.int8), np.array([1.0, 1.0, 0.0]))}),
    ],
)
def test_a_mask_is_read_from_the_observation_or_the_info(obs: Any, info: Any) -> None:
    assert mask_of("legal", obs, info, ACTION, over=False).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (None, "there is none in the observation or the info"),
        (np.ones(4), "a mask of 4 entries, expected 5"),
        (np.array([1, 2, 0, 0, 1]), "something else than 0 and 1"),
        (np.array([1, 0, 0, 0, 0]), "forbids all 3 choices of component 1"),
    ],
)
def test_a_mask_that_cannot_be_used_is_an_error_of_the_environment(mask: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        mask_of("legal", {}, {} if mask is None else {"legal": mask}, ACTION, over=False)


def test_after_an_end_nothing_needs_to_be_legal() -> None:
    assert mask_of("legal", {}, {"legal": np.zeros(5)}, ACTION, over=True).all()


def test_the_mask_is_no_part_of_the_observation() -> None:
    one = spaces.Dict({"see": spaces.Discrete(2), "legal": spaces.MultiBinary(5)})
    assert list(without_mask(one, "legal")) == ["see"]
    assert without_mask(one, "") is one
    assert without_mask(spaces.Discrete(2), "legal") == spaces.Discrete(2)
