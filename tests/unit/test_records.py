"""The row layouts; test_messages_documented.py compares their offsets with docs/protocol.md."""

import numpy as np
import pytest

from tests.helpers import row_layout
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.records import action_record, rollout_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value

PONG = EnvSpec(
    "PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), frame_stack=4, frame_skip=4
)
CARTPOLE = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
PENDULUM = EnvSpec("Pendulum-v1", ArraySpace.box((3,)), ArraySpace.box((1,), low=(-2.0,), high=(2.0,)))


def test_a_continuous_action_is_a_float32_field_of_its_shape() -> None:
    assert row_layout(action_record(PENDULUM.action)) == [["action", "<f4", [1], 0]]
    assert action_record(PENDULUM.action).row_bytes == 64


def test_each_field_of_a_rollout_has_its_number_of_steps() -> None:
    spec = rollout_record(PONG, PolicySpec(logits_and_value(6), 0), unroll_length=20)
    shapes = {name: shape for name, _, shape, _ in row_layout(spec)}
    assert shapes["obs"] == [24, 84, 84]
    assert shapes["first"] == shapes["reward"] == shapes["last_action"] == [21]
    assert shapes["logits"] == [20, 6]
    assert shapes["value"] == shapes["policy_version"] == [20]


def test_a_recurrent_rollout_ends_with_the_state_before_its_first_observation() -> None:
    spec = rollout_record(CARTPOLE, PolicySpec(logits_and_value(2), 512), unroll_length=5)
    assert row_layout(spec)[-1][:3] == ["core_state", "<f4", [512]]


def test_a_rollout_too_large_for_a_frame_is_refused_before_memory_is_taken() -> None:
    huge = EnvSpec("Huge", ArraySpace.box((8192, 8192), "|u1"), ArraySpace.discrete(2))
    with pytest.raises(RemoteProtocolError, match="larger than"):
        rollout_record(huge, PolicySpec(logits_and_value(2), 0), unroll_length=10_000)


def test_continuous_actions_are_stored_as_float32() -> None:
    rows = np.zeros(3, action_record(PENDULUM.action).dtype)
    rows["action"] = [[0.5], [1.0], [-1.0]]
    assert rows.view("u1")[:8].tobytes() == np.array([0.5, 0.0], "<f4").tobytes()
