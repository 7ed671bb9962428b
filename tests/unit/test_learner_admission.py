"""Which actors fit a run, and which rollouts can be trained on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.build.learners import ENV, POLICY, T
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec, rollout_record
from zerobeast.common.wire.checks import find_rollout_flaw
from zerobeast.common.wire.episodes import Episode, episodes_of
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.learner.admission import Terms, mismatch

OURS = Terms(ENV, POLICY, T, num_envs=8)
BOTH = replace(OURS, env=ENV.among("Other-v0,Test-v0"))


def hello(**changes: Any) -> dict[str, Any]:
    return {"env": ENV.to_wire(), "policy": POLICY.to_wire(), "unroll_length": T, "num_envs": 4, **changes}


def env(**changes: Any) -> dict[str, Any]:
    return {"env": replace(ENV, **changes).to_wire()}


@pytest.mark.parametrize(
    ("change", "ours", "path"),
    [
        ({}, OURS, ""),
        ({"policy": {}}, OURS, ""),
        ({"num_envs": 8}, OURS, ""),
        ({"num_envs": 9}, OURS, "num_envs"),
        ({"unroll_length": 7}, OURS, "unroll_length"),
        ({"policy": {**POLICY.to_wire(), "core_size": 8}}, OURS, "policy.core_size"),
        (env(action=ArraySpace.discrete(3)), OURS, "env.action.sizes"),
        (env(env_id="Other-v0"), OURS, "env.env_id"),
        (env(env_id="Other-v0"), BOTH, ""),
        *((env(env_id=stranger), BOTH, "env.env_id") for stranger in ("Third-v0", "Other-v0,Test-v0")),
        (env(env_id="Other-v0", obs=ArraySpace.box((3,))), BOTH, "env.obs.shape"),
    ],
)
def test_the_first_term_that_differs_from_the_runs_is_named(change: dict[str, Any], ours: Terms, path: str) -> None:
    assert (mismatch(Terms.from_wire(hello(**change)), ours) or "").partition(" ")[0] == path


@pytest.mark.parametrize(
    "change",
    [
        {"policy": {"extras": [["logits", "<f4", [-1]]], "core_size": 0}},
        {"unroll_length": True},
        *({name: np.zeros(3)} for name in ("policy", "env", "num_envs")),
        {"num_envs": 1 << 40},
        {"first": 0},
        {"env": {**ENV.to_wire(), "action": {**ENV.to_wire()["action"], "sizes": [2, 2]}}},
    ],
)
def test_impossible_terms_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        Terms.from_wire(hello(**change))


DISCRETE = EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace("multi_discrete", shape=(2,), sizes=(2, 5)))
REAL = EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace.box((2,), low=(-1.0, -1.0), high=(1.0, 1.0)))
CHOICES = EnvSpec("Test-v0", ArraySpace("multi_discrete", shape=(2,), sizes=(2, 5)), ArraySpace.discrete(2))


@pytest.mark.parametrize(
    ("env", "outputs", "field", "good", "bad"),
    [
        *((ENV, 2, field, 0.5, bad) for field in ("obs", "value") for bad in (np.nan, -np.inf)),
        *((ENV, 2, "last_action", 1, bad) for bad in (-1, 2)),
        (ENV, 2, "policy_version", 0, -1),
        (DISCRETE, 7, "last_action", [1, 4], [2, 4]),
        (REAL, 4, "last_action", 7.5, np.nan),
        (CHOICES, 2, "obs", [1, 4], [1, 5]),
    ],
)
def test_a_bad_value_is_a_flaw_of_its_field(env: EnvSpec, outputs: int, field: str, good: Any, bad: Any) -> None:
    rows = np.zeros(3, rollout_record(env, PolicySpec(logits_and_value(outputs), 0), T).dtype)
    rows[field] = good
    assert find_rollout_flaw(rows, env) is None
    rows[field][1, -1] = bad
    assert (find_rollout_flaw(rows, env) or "").startswith(field)


@pytest.mark.parametrize(
    "entry",
    [
        1,
        [1.0, 0],
        [True, 2],
        [1e308, 2],
        [1.0, 1, {"x": float("nan")}],
        [1.0, 1, {"x" * 65: 1.0}],
        [1.0, 1, {"\x1b": 1.0}],
        [1.0, 1, {str(number): 0.0 for number in range(33)}],
    ],
)
def test_malformed_episodes_are_left_out(entry: Any) -> None:
    refused = list[str]()
    found = episodes_of([[1, 1], entry, [-0.5, 2.0]], lambda error: refused.append(error.reason))
    assert (found, refused) == ((Episode(1.0, 1), Episode(-0.5, 2)), ["episodes"])
