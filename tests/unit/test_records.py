"""The row layouts, byte for byte as docs/protocol.md gives them."""

import numpy as np
import pytest

from tests.helpers import layout_id, row_layout
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.records import act_record, action_record, rollout_record, step_record
from zerobeast.common.wire.specs import ActionSpec, EnvSpec, PolicySpec, RecordSpec

pytestmark = pytest.mark.unit

PONG = EnvSpec("PongNoFrameskip-v4", (84, 84), "|u1", ActionSpec.discrete(6), frame_stack=4, frame_skip=4)
CARTPOLE = EnvSpec("CartPole-v1", (4,), "<f4", ActionSpec.discrete(2))
PENDULUM = EnvSpec("Pendulum-v1", (3,), "<f4", ActionSpec("box", (1,), low=(-2.0,), high=(2.0,)))


def offsets(spec: RecordSpec) -> dict[str, int]:
    return {name: offset for name, _, _, offset in row_layout(spec)} | {"row": spec.row_bytes}


def test_step_rows() -> None:
    assert offsets(step_record(PONG)) == {
        "obs": 0,
        "reward": 7056,
        "terminated": 7064,
        "truncated": 7072,
        "first": 7080,
        "row": 7104,
    }
    assert offsets(step_record(CARTPOLE)) == {
        "obs": 0,
        "reward": 16,
        "terminated": 24,
        "truncated": 32,
        "first": 40,
        "row": 64,
    }


def test_action_rows() -> None:
    assert row_layout(action_record(PONG.action)) == [["action", "<i8", [], 0]]
    assert row_layout(action_record(PENDULUM.action)) == [["action", "<f4", [1], 0]]
    assert action_record(PENDULUM.action).row_bytes == 64


def test_act_rows() -> None:
    spec = act_record(PONG, PolicySpec(n_logits=6, core_size=0))
    assert offsets(spec) == {"action": 0, "logits": 8, "value": 32, "row": 64}
    spec = act_record(CARTPOLE, PolicySpec(n_logits=2, core_size=0))
    assert offsets(spec) == {"action": 0, "logits": 8, "value": 16, "row": 64}


def test_rollout_rows() -> None:
    spec = rollout_record(PONG, PolicySpec(n_logits=6, core_size=0), unroll_length=20)
    shapes = {name: shape for name, _, shape, _ in row_layout(spec)}
    assert shapes["obs"] == [24, 84, 84]
    assert shapes["first"] == shapes["reward"] == shapes["last_action"] == [21]
    assert shapes["behaviour_logits"] == [20, 6]
    assert shapes["value"] == shapes["policy_version"] == [20]
    assert offsets(spec) == {
        "obs": 0,
        "first": 169344,
        "reward": 169368,
        "terminated": 169456,
        "truncated": 169480,
        "last_action": 169504,
        "behaviour_logits": 169672,
        "value": 170152,
        "policy_version": 170232,
        "core_state": 170392,
        "row": 170432,
    }


def test_spec_ids_of_the_documentation() -> None:
    assert layout_id(step_record(CARTPOLE)) == 258821729
    assert layout_id(step_record(PONG)) == 2028708861
    assert layout_id(action_record(CARTPOLE.action)) == 1795075521


def test_a_recurrent_rollout_ends_with_the_state_before_its_first_observation() -> None:
    spec = rollout_record(CARTPOLE, PolicySpec(n_logits=2, core_size=512), unroll_length=5)
    assert row_layout(spec)[-1][:3] == ["core_state", "<f4", [512]]


def test_a_rollout_too_large_for_a_frame_is_refused_before_memory_is_taken() -> None:
    huge = EnvSpec("Huge", (8192, 8192), "|u1", ActionSpec.discrete(2))
    with pytest.raises(RemoteProtocolError, match="larger than"):
        rollout_record(huge, PolicySpec(2, 0), unroll_length=10_000)


def test_an_action_is_a_field_of_its_kind() -> None:
    rows = np.zeros(3, action_record(PENDULUM.action).dtype)
    rows["action"] = [[0.5], [1.0], [-1.0]]
    assert rows.view("u1")[:8].tobytes() == np.array([0.5, 0.0], "<f4").tobytes()
