import numpy as np
import pytest

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.services.envserver.spaces import legal


@pytest.mark.parametrize("bad", [-1, 3, 2**62, -(2**63)])
def test_a_choice_out_of_range_is_refused_in_words(bad: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"environment 1 is {bad}, expected 0 to 2") as caught:
        legal(np.array([2, bad]), ArraySpace.discrete(3))
    assert caught.value.reason == "action"


def test_every_component_of_a_multi_discrete_action_has_its_own_range() -> None:
    space = ArraySpace.multi_discrete(2, 5)
    assert legal(np.array([[1, 4], [0, 0]]), space).tolist() == [[1, 4], [0, 0]]
    with pytest.raises(RemoteProtocolError, match="environment 1 is 2, expected 0 to 1"):
        legal(np.array([[1, 4], [2, 0]]), space)


def test_real_actions_are_clipped_to_their_box() -> None:
    space = ArraySpace.box((1, 2), low=(-1.0, -np.inf), high=(1.0, 0.5))
    wild = np.array([[[5, 5]], [[-5, -5]]], np.float32)
    assert legal(wild, space).tolist() == [[[1.0, 0.5]], [[-1.0, -5.0]]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_real_action_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(RemoteProtocolError, match="not a finite number"):
        legal(np.array([[bad]], np.float32), ArraySpace.box((1,), low=(-1.0,), high=(1.0,)))


def test_legal_actions_are_a_contiguous_copy() -> None:
    received = np.zeros(3, np.dtype({"names": ["action"], "formats": ["<i8"], "itemsize": 64}))
    actions = legal(received["action"], ArraySpace.discrete(2))
    actions[:] = 1
    assert actions.flags.c_contiguous
    assert received["action"].tolist() == [0, 0, 0]
