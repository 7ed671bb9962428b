"""Which actors fit a run, and which rollouts can be trained on."""

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.build.learners import ENV, POLICY, T, rollout_rows
from tests.build.streams import ListMessage
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.checks import rollout_flaw
from zerobeast.common.wire.episodes import Episode, episodes_of
from zerobeast.common.wire.messages import MAX_EPISODES, Header, Kind
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.learner.admission import Terms, mismatch, read_rollouts

OURS = Terms(ENV, POLICY, T, num_envs=8)


def hello(**changes: Any) -> dict[str, Any]:
    return {"env": ENV.to_wire(), "policy": POLICY.to_wire(), "unroll_length": T, "num_envs": 4, **changes}


def test_equal_terms_fit() -> None:
    assert mismatch(Terms.from_wire(hello()), OURS) is None


def test_an_actor_may_leave_the_policy_to_the_learner() -> None:
    for policy in (None, {}):
        terms = Terms.from_wire(hello(policy=policy))
        assert terms.policy is None
        assert mismatch(terms, OURS) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"unroll_length": 7}, "unroll_length is 7, this run has 5"),
        ({"policy": {**POLICY.to_wire(), "core_size": 8}}, "policy.core_size is 8, this run has 0"),
        (
            {"env": replace(ENV, obs=ArraySpace.box((3,))).to_wire()},
            r"env.obs.shape is \[3\], this run has \[4\]",
        ),
        ({"env": {**ENV.to_wire(), "env_id": "Other-v0"}}, "env.env_id is Other-v0, this run has Test-v0"),
        (
            {"env": EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace.discrete(3), frame_skip=4).to_wire()},
            r"env.action.sizes is \[3\], this run has \[2\]",
        ),
        ({"num_envs": 9}, "num_envs is 9, expected at most 8"),
    ],
)
def test_a_difference_is_named_with_both_values(change: dict[str, Any], sentence: str) -> None:
    found = mismatch(Terms.from_wire(hello(**change)), OURS)
    assert re.search(sentence, found)


def test_each_environment_of_a_run_fits_if_it_is_like_the_others() -> None:
    ours = replace(OURS, env=ENV.among("Other-v0,Test-v0"))
    for task in ("Other-v0", "Test-v0"):
        terms = Terms.from_wire(hello(env=replace(ENV, env_id=task).to_wire()))
        assert mismatch(terms, ours) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"env_id": "Third-v0"}, "env.env_id is Third-v0, this run has Other-v0,Test-v0"),
        ({"env_id": "Other-v0,Test-v0"}, "env.env_id is Other-v0,Test-v0, this run has Other-v0,Test-v0"),
        (
            {"env_id": "Other-v0", "obs": ArraySpace.box((3,))},
            "env.obs.shape of Other-v0 is [3], this run of Other-v0,Test-v0 has [4]",
        ),
    ],
)
def test_an_environment_that_is_not_like_the_others_is_named_with_them(change: dict[str, Any], sentence: str) -> None:
    ours = replace(OURS, env=ENV.among("Other-v0,Test-v0"))
    assert mismatch(Terms.from_wire(hello(env=replace(ENV, **change).to_wire())), ours) == sentence


@pytest.mark.parametrize(
    "change",
    [
        {"env": None},
        {"env": {"env_id": "x"}},
        {"policy": [1]},
        {"policy": {"extras": [["logits", "<f4", [-1]]], "core_size": 0}},
        {"unroll_length": True},
        {"unroll_length": 0},
        {"num_envs": "many"},
        {"num_envs": 1 << 40},
        {"env": {**ENV.to_wire(), "action": {**ENV.to_wire()["action"], "sizes": [2, 2]}}},
        {"env": {**ENV.to_wire(), "action": {**ENV.to_wire()["action"], "kind": "box"}}},
    ],
)
def test_impossible_terms_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        Terms.from_wire(hello(**change))


def test_valid_rows_have_no_flaw() -> None:
    assert rollout_flaw(rollout_rows(8), ENV) is None


@pytest.mark.parametrize("field", ["obs", "reward", "logits", "value"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_a_flaw(field: str, value: float) -> None:
    rows = rollout_rows(3)
    rows[field][1].flat[-1] = value
    assert re.fullmatch(f"{field} of row . holds a value that is not finite", rollout_flaw(rows, ENV) or "")


@pytest.mark.parametrize("action", [-1, 2, 1 << 62])
def test_an_action_that_does_not_exist_is_a_flaw(action: int) -> None:
    rows = rollout_rows(3)
    rows["last_action"][2, -1] = action
    assert "last_action" in (rollout_flaw(rows, ENV) or "")


def test_each_component_of_an_action_has_its_own_bound() -> None:
    env = EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace("multi_discrete", shape=(2,), sizes=(2, 5)))
    rows = rollout_rows(3, env=env, policy=PolicySpec(logits_and_value(7), 0))
    rows["last_action"][:, :, 1] = 4
    assert rollout_flaw(rows, env) is None
    rows["last_action"][0, 0, 0] = 2
    assert rollout_flaw(rows, env) is not None


def test_a_real_action_may_lie_outside_its_box_but_has_to_be_a_number() -> None:
    env = EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace.box((2,), low=(-1.0, -1.0), high=(1.0, 1.0)))
    rows = np.zeros(3, rollout_record(env, PolicySpec(logits_and_value(4), 0), 5).dtype)
    rows["last_action"] = 7.5
    assert rollout_flaw(rows, env) is None
    rows["last_action"][1, 2, 1] = np.nan
    assert "last_action" in (rollout_flaw(rows, env) or "")


def test_an_observed_choice_that_does_not_exist_is_a_flaw() -> None:
    env = EnvSpec("Test-v0", ArraySpace("multi_discrete", shape=(2,), sizes=(2, 5)), ArraySpace.discrete(2))
    rows = rollout_rows(3, env=env)
    rows["obs"] = rows["obs"] % [2, 5]
    assert rollout_flaw(rows, env) is None
    rows["obs"][1, 2] = [1, 5]
    assert rollout_flaw(rows, env) == "obs holds the choice 5, expected 0 to 4"


def test_a_negative_version_is_a_flaw() -> None:
    rows = rollout_rows(3)
    rows["policy_version"][0, 0] = -1
    assert rollout_flaw(rows, ENV) == "policy_version is negative"


def test_episodes_come_out_as_python_numbers() -> None:
    assert episodes_of([[1, 2], [-0.5, 3.0]], lambda _error: None) == (Episode(1.0, 2), Episode(-0.5, 3))


@pytest.mark.parametrize(
    "entry",
    [
        1,
        [1],
        [1, 2, 3],
        ["a", -2],
        [float("nan"), 2],
        [1.0, 0],
        [1.0, float("inf")],
        [True, 2],
        [1.0, float("nan")],
        [1e308, 2],
        [1.0, 1, {"x": float("nan")}],
        [1.0, 1, {"x": 1}],
        [1.0, 1, {"x": 1.7e308}],
        [1.0, 1, {"": 1.0}],
        [1.0, 1, {"x" * 65: 1.0}],
        [1.0, 1, {"\x1b": 1.0}],
        [1.0, 1, {str(number): 0.0 for number in range(33)}],
    ],
)
def test_malformed_episodes_are_left_out(entry: Any) -> None:
    refused = list[str]()
    assert episodes_of([[1.0, 1], entry, [2.0, 2]], lambda error: refused.append(error.reason)) == (
        Episode(1.0, 1),
        Episode(2.0, 2),
    )
    assert refused == ["episodes"]


def test_more_episodes_than_a_message_may_have_are_refused() -> None:
    terms, rows = Terms(ENV, POLICY, T, 4), rollout_rows(4)
    for count, sentence in ((MAX_EPISODES, ""), (MAX_EPISODES + 1, "1001 episodes, expected at most 1000")):
        message = ListMessage(Header(Kind.ROLLOUT, 1, body=(4, [[1.0, 1]] * count, 0)), rows)
        with pytest.raises(RemoteProtocolError, match=sentence) if sentence else nullcontext():
            assert len(read_rollouts(message.header, message.into, terms, partial(np.empty, dtype=rows.dtype))) == 4
