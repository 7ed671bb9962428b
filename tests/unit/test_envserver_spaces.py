"""Spaces as peers see them, values in them, masks of choices, and rows of a program that steps its own environment."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten

from tests.build.errors import refuses
from zerobeast.clients.own_env import OwnEnv
from zerobeast.common.errors import EnvError, RemoteProtocolError
from zerobeast.common.wire import EnvSpec, action_record, step_record
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part, iterate_arrays
from zerobeast.services.envserver.env_reader import mask_of
from zerobeast.services.envserver.spaces import action_adapter, env_spec, make_legal, obs_adapter, space_of

IMAGE, WORD = spaces.Box(0, 255, (4, 6), np.uint8), spaces.Discrete(5, start=2)
FIVE = ArraySpace.discrete(5)
PAIR = (Part("0", FIVE), Part("1", FIVE))


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(4, start=-2), ArraySpace.discrete(4)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), ArraySpace.multi_discrete(2, 3, 4, 5, shape=(2, 2))),
        (spaces.MultiBinary((2, 1)), ArraySpace("multi_binary", "|i1", (2, 1))),
        (spaces.Box(0, 255, (84, 84), np.uint8), ArraySpace.box((84, 84), "|u1", (0.0,), (255.0,))),
        (spaces.Box(0, 1, (10, 10, 4), bool), ArraySpace.box((10, 10, 4), "|b1", (0.0,), (1.0,))),
        (spaces.Box(*np.float32([[-1, 0], [1, np.inf]])), ArraySpace.box((2,), "<f4", (-1, 0), (1, np.inf))),
        (
            spaces.Dict({"a": WORD, "pair": spaces.Tuple([WORD, WORD])}),
            CompositeSpace("dict", (Part("a", FIVE), Part("pair", CompositeSpace("tuple", PAIR)))),
        ),
    ],
)
def test_every_space_has_a_description(space: spaces.Space, spec: Any) -> None:
    assert space_of(space, "observation space") == spec


@pytest.mark.parametrize(
    ("space", "path"),
    [
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Text(5)])}), "space.b.0"),
        (spaces.Sequence(spaces.Discrete(2)), "space"),
        (spaces.Box(0, 1, (0,)), "space"),
    ],
)
def test_anything_else_is_refused_by_its_path(space: spaces.Space, path: str) -> None:
    with pytest.raises(EnvError, match=rf"^{path} "):
        space_of(space, "space")


@pytest.mark.parametrize(
    ("action", "masked"),
    [
        (spaces.Discrete(1 << 17), False),
        (spaces.Box(0, 9, (1,), np.int64), False),
        (spaces.Box(-np.arange(7000, dtype=np.float32), np.arange(7000, dtype=np.float32)), False),  # too long a text
        (spaces.Box(-1, 1, (2,)), True),  # there are no choices to forbid
    ],
)
def test_an_environment_that_no_peer_would_accept_is_refused_here(action: spaces.Space, masked: bool) -> None:
    with pytest.raises(EnvError):
        env_spec("Any-v0", IMAGE, action, masked=masked)


def test_bounds_that_do_not_fit_a_message_are_left_out() -> None:
    low = np.linspace(-1, 0, 84 * 84, dtype=np.float32).reshape(84, 84)
    assert env_spec("Wide-v0", spaces.Box(low, low + 1), WORD).obs == ArraySpace.box((84, 84))


SPACES = [
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3], start=[10, 20]),
    spaces.MultiBinary(2),
    spaces.Box(-0.1, 0.1, (2,), np.float64),
    spaces.Dict({"kick": spaces.Box(-0.1, 0.1, (2,), np.float64), "to": spaces.Tuple([WORD, spaces.MultiBinary(2)])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_survive_the_wire_with_choices_counted_from_0_and_legal_actions_are_inside(space: spaces.Space) -> None:
    space.seed(3)
    spec, there, back = space_of(space, "observation space"), obs_adapter(space), action_adapter(space)
    for sample in (space.sample() for _ in range(20)):
        sent = there(sample)
        for array, value in iterate_arrays(spec, sent):
            assert value.shape == array.shape
            assert array.kind == "box" or ((value >= 0).all() and (value.ravel() < array.choices).all())
        np.testing.assert_array_equal(flatten(space, back(sent)), flatten(space, sample))
    actions = np.zeros(2, action_record(spec).dtype)["action"]
    for array, entries in iterate_arrays(spec, actions):
        if array.kind == "box":
            entries[0], entries[1] = array.bounds
        else:
            entries[1] = np.reshape(array.choices, array.shape) - 1
    assert all(space.contains(back(action)) for action in actions)


COMPONENTS = CompositeSpace(
    "dict", (Part("go", ArraySpace.discrete(2)), Part("aim", ArraySpace.box((1,))), Part("who", ArraySpace.discrete(3)))
)


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (ArraySpace.multi_discrete(2, 5), [[1, 4], [0, 0]], [[1, 4], [0, 0]]),
        (ArraySpace.multi_discrete(2, 5), [[1, 4], [2, 0]], None),
        *((ArraySpace.discrete(3), [2, bad], None) for bad in (-1, 3, 2**62)),
        (ArraySpace.box((2,), low=(-1.0, -np.inf), high=(1.0, 0.5)), [[5.0, 5.0], [-5.0, -5.0]], [[1, 0.5], [-1, -5]]),
        *((ArraySpace.box((1,), low=(-1.0,), high=(1.0,)), [[bad]], None) for bad in (np.nan, np.inf)),
    ],
)
def test_choices_have_to_be_in_range_and_reals_are_clipped(space: ArraySpace, actions: Any, expected: Any) -> None:
    if expected is not None:
        assert make_legal(np.array(actions), space).tolist() == expected
        return
    with refuses(kind=RemoteProtocolError, reason="action"):
        make_legal(np.array(actions), space)


def test_legal_actions_are_a_contiguous_copy() -> None:
    received = np.zeros(3, np.dtype({"names": ["action"], "formats": ["<i8"], "itemsize": 64}))
    actions = make_legal(received["action"], ArraySpace.discrete(2))
    actions[:] = 1
    assert actions.flags.c_contiguous
    assert received["action"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("obs", "info"),
    [
        ({"legal": np.array([1, 0, 1, 1, 0])}, {}),
        ({}, {"legal": np.array([True, False, True, True, False])}),
        (np.zeros(3), {"legal": (np.array([1, 0], np.int8), np.array([1.0, 1.0, 0.0]))}),
    ],
)
def test_a_mask_is_read_from_the_observation_or_the_info(obs: Any, info: Any) -> None:
    assert mask_of("legal", obs, info, COMPONENTS, over=False).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("mask", [None, np.ones(4), np.array([1, 2, 0, 0, 1]), np.array([1, 0, 0, 0, 0])])
def test_a_mask_that_cannot_be_used_is_an_error_of_the_environment(mask: Any) -> None:
    with pytest.raises(EnvError):
        mask_of("legal", {}, {} if mask is None else {"legal": mask}, COMPONENTS, over=False)
    if mask is not None and mask.size == 5 and mask.max() == 1:  # after an end nothing needs to be legal
        assert mask_of("legal", {}, {"legal": np.zeros(5)}, COMPONENTS, over=True).all()


GYM = OwnEnv(
    "Ship-v0",
    spaces.Dict({"eye": spaces.Box(0, 255, (2, 2), np.uint8), "gear": spaces.Discrete(3, start=1)}),
    spaces.Tuple([spaces.Box(-2.0, 2.0, (2,)), spaces.Discrete(4, start=-1)]),
)
PARTS = CompositeSpace("dict", (Part("eye", ArraySpace.box((2,))), Part("gear", ArraySpace.discrete(3))))
OURS = OwnEnv.of(EnvSpec("Ship-v0", PARTS, ArraySpace.box((2,), low=(-1.0,), high=(1.0,)), action_mask=False))
MASKED = OwnEnv("Cards-v0", spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]), action_mask=True)


def test_gymnasium_values_become_rows_and_rows_become_gymnasium_values() -> None:
    rows = GYM.row({"eye": [[0, 1], [2, 255]], "gear": 3}, 1.5, terminated=True)
    assert rows.dtype == step_record(GYM.spec).dtype
    assert rows["obs"]["eye"][0].tolist() == [[0, 1], [2, 255]]
    assert rows["obs"]["gear"].tolist() == [2], "choices travel counted from 0"
    assert rows[["reward", "terminated", "truncated", "first"]][0].item() == (1.5, True, False, False)
    actions = np.zeros(1, action_record(GYM.spec.action).dtype)["action"]
    actions["0"], actions["1"] = [[3.0, -0.5]], 3
    box, choice = GYM.action(actions)
    assert box.tolist() == [2.0, -0.5], "clipped into its box"
    assert choice == 2


def test_an_env_spec_needs_no_gymnasium() -> None:
    rows = OURS.row({"eye": np.array([0.5, 1e-3]), "gear": 2}, first=True)
    assert rows["obs"]["eye"].tolist() == [[0.5, np.float32(1e-3)]]
    assert rows["first"].all()
    actions = np.full(1, 3.0, action_record(OURS.spec.action).dtype)["action"]
    action = OURS.action(actions)
    actions[...] = 0.0
    assert action.tolist() == [1.0, 1.0], "a copy, and clipped"
    with pytest.raises(EnvError, match="frame_stack"):
        OwnEnv.of(EnvSpec("Coin-v0", ArraySpace.box((1,)), ArraySpace.discrete(2), frame_stack=0))
    discrete = OwnEnv.of(EnvSpec("Coin-v0", ArraySpace.box((1,)), ArraySpace.discrete(2)))
    assert type(discrete.action(np.array([1]))) is int


def test_masks_mark_what_is_legal_and_without_one_all_is() -> None:
    mask = [True, False, False, True, True]
    assert MASKED.row([0.0], mask=mask)["action_mask"][0].tolist() == mask
    assert MASKED.row([0.0])["action_mask"].all()
    with pytest.raises(EnvError, match="component 0"):
        MASKED.row([0.0], mask=[0, 0, 1, 1, 1])
    with pytest.raises(EnvError, match=r"\[5\]"):
        MASKED.row([0.0], mask=[True, True])


GOOD = {"eye": [0.0, 0.0], "gear": 0}
EYE = np.zeros((2, 2), np.uint8)


@pytest.mark.parametrize(
    ("env", "obs", "reward", "path"),
    [
        (OURS, {"eye": [0.0, 0.0]}, 0.0, "obs"),
        (OURS, 3, 0.0, "obs"),
        *((OURS, GOOD | {"eye": bad}, 0.0, "obs.eye") for bad in ([0.0], ["a", "b"], [0.0, np.inf], [0.0, 1e300])),
        *((OURS, GOOD | {"gear": bad}, 0.0, "obs.gear") for bad in (1.5, 3)),
        *((OURS, GOOD, bad, "reward") for bad in (np.nan, "1", [1.0])),
        (GYM, {"gear": 1}, 0.0, "an observation"),
        *((GYM, {"eye": bad, "gear": 1}, 0.0, "obs.eye") for bad in (np.full((2, 2), 256), EYE / 2)),
        (GYM, {"eye": EYE, "gear": 0}, 0.0, "obs.gear"),
    ],
)
def test_an_invalid_observation_or_reward_is_named(env: OwnEnv, obs: Any, reward: Any, path: str) -> None:
    with pytest.raises(EnvError, match=f"^{path} "):
        env.row(obs, reward)
