"""Conversion between a program's observations and actions and the rows that travel."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from zerobeast.clients.own_env import OwnEnv
from zerobeast.common.errors import EnvError
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec

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
