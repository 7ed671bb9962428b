import numpy as np
import pytest
from gymnasium import spaces

from zerobeast.common.errors import EnvError
from zerobeast.common.wire.specs import ActionSpec
from zerobeast.services.envserver.spaces import ActionAdapter, action_spec, env_spec, obs_layout

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("space", "layout"),
    [
        (spaces.Box(0, 255, (84, 84), np.uint8), ("|u1", (84, 84))),
        (spaces.Box(0, 1, (10, 10, 4), bool), ("|b1", (10, 10, 4))),
        (spaces.Box(-1, 1, (3,), np.float64), ("<f4", (3,))),
        (spaces.Box(-1, 1, (3,), np.float16), ("<f2", (3,))),
        (spaces.Discrete(16), ("<i8", ())),
        (spaces.MultiDiscrete([3, 4]), ("<i8", (2,))),
        (spaces.MultiBinary(5), ("|i1", (5,))),
    ],
)
def test_an_observation_is_one_array_of_numbers(space: spaces.Space, layout: tuple) -> None:
    assert obs_layout(space) == layout


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Dict({"a": spaces.Discrete(2)}), spaces.Box(0, 1, (0,))])
def test_anything_else_is_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(EnvError, match=r"observation space .* is not supported"):
        obs_layout(space)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(4), ActionSpec.discrete(4)),
        (spaces.Discrete(4, start=-2), ActionSpec.discrete(4)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), ActionSpec("multi_discrete", (2, 2), (2, 3, 4, 5))),
        (spaces.MultiBinary((2, 1)), ActionSpec("multi_discrete", (2, 1), (2, 2))),
        (spaces.Box(-2, 2, (2,), np.float32), ActionSpec("box", (2,), (), (-2.0, -2.0), (2.0, 2.0))),
    ],
)
def test_every_kind_of_action_has_a_spec(space: spaces.Space, spec: ActionSpec) -> None:
    assert action_spec(space) == spec


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Tuple([spaces.Discrete(2)]), spaces.Box(0, 9, (1,), np.int64)]
)
def test_other_actions_are_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(EnvError, match=r"action space .* is not supported"):
        action_spec(space)


def test_an_environment_that_no_peer_would_accept_is_refused_here() -> None:
    with pytest.raises(EnvError, match="'Huge-v0' is not supported"):
        env_spec("Huge-v0", ("|u1", (4,)), spaces.Discrete(1 << 17))
    with pytest.raises(EnvError, match=r"action space \(4000,\) is too large"):
        env_spec("Huge-v0", ("|u1", (4,)), spaces.Box(-1, 1, (4000,)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 3], start=[10, 20]),
        spaces.MultiBinary(2),
        spaces.Box(-0.1, 0.1, (2,), np.float64),
    ],
)
def test_legal_actions_arrive_inside_their_space(space: spaces.Space) -> None:
    spec = action_spec(space)
    highest = np.array(spec.high or [size - 1 for size in spec.sizes], spec.dtype).reshape(spec.shape)
    lowest = np.array(spec.low or [0] * len(spec.sizes), spec.dtype).reshape(spec.shape)
    adapt = ActionAdapter(space)
    assert space.contains(adapt(highest))
    assert space.contains(adapt(lowest))
