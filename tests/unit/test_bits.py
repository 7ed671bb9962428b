"""Observed arrays of bits travel and are stored as eight to a byte, and arrive as their space has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import as_bits, row_layout
from zerobeast.clients.own_env import OwnEnv
from zerobeast.common.wire import EnvSpec, Field, PolicySpec, rollout_record, step_record
from zerobeast.common.wire.bits import pack_bits, unpack_rows
from zerobeast.common.wire.checks import find_flaw, find_illegal, find_rollout_flaw
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.rl.data import Rollouts
from zerobeast.rl.ops.columns import read_observations
from zerobeast.rl.replay.ring_file import RingFile

POLICY = PolicySpec((Field("q", "<f4", (9,)),), 0)


def planes(*shape: int) -> ArraySpace:
    return ArraySpace.box(shape, "|b1", (0.0,), (1.0,))


def env(obs: Any, stack: int = 1) -> EnvSpec:
    return EnvSpec("Planes-v0", obs, ArraySpace("multi_binary", "|i1", (9,)), frame_stack=stack)


MINATAR, FOOTBALL = env(planes(10, 10, 4)), env(planes(72, 96, 4), 4)
SWITCHES = ArraySpace("multi_binary", "|i1", (11,))
PARTS = (Part("map", planes(3, 5)), Part("speed", ArraySpace.box(())), Part("on", SWITCHES), Part("flag", planes()))
ROBOT = env(CompositeSpace("dict", PARTS))


def test_arrays_of_bits_are_packed_in_observations_alone() -> None:
    assert row_layout(step_record(MINATAR))[:2] == [["obs", "|u1", [50], 0], ["reward", "<f4", [], 56]]
    names, formats = ["map", "speed", "on", "flag"], [("|u1", (2,)), "<f4", ("|u1", (2,)), ("|u1", (1,))]
    parts = {"names": names, "formats": formats, "offsets": [0, 8, 16, 24], "itemsize": 32}
    assert step_record(ROBOT).dtype["obs"].fields == np.dtype(parts).fields
    rollout = rollout_record(FOOTBALL, POLICY, 5)
    assert rollout.dtype["obs"] == np.dtype(("|u1", (5 + 4, 72 * 96 * 4 // 8)))
    assert rollout.dtype["last_action"] == np.dtype(("|i1", (6, 9)))


def test_wire_and_replay_have_at_most_a_seventh_of_the_bytes(tmp_path: Path) -> None:
    assert step_record(FOOTBALL, packed=False).row_bytes >= 7 * step_record(FOOTBALL).row_bytes
    record = rollout_record(FOOTBALL, POLICY, 20)
    assert (20 + 4) * 72 * 96 * 4 >= 7 * record.row_bytes
    for compression in ("none", "zstd"):
        ring = RingFile(tmp_path / compression, record, FOOTBALL, 50, compression)
        assert 50 * (20 + 4) * 72 * 96 * 4 >= 7 * ring.path.stat().st_size


@pytest.mark.parametrize("space", [planes(), planes(8), planes(3, 5), planes(2, 9, 4), SWITCHES], ids=str)
def test_every_element_comes_back_on_both_sides_whatever_the_spare_bits_are(space: ArraySpace) -> None:
    values = np.random.default_rng(1).integers(0, 2, (4, 2, *space.shape)).astype(space.dtype)
    dirty, clean = as_bits(values, len(space.shape)), pack_bits(values, space)
    spare = -np.prod(space.shape, dtype=int) % 8
    assert (clean[..., -1] == dirty[..., -1] & (0xFF >> spare)).all(), "spare bits are written as zeros"
    assert (clean[..., :-1] == dirty[..., :-1]).all()
    rows = np.zeros((4, 64), np.uint8)  # not contiguous, as fields of rows are not
    rows[:, : dirty[0].size] = dirty.reshape(4, -1)
    found = read_observations(space, torch.from_numpy(rows)[:, : dirty[0].size].unflatten(1, (2, -1)))
    assert found.dtype == torch.from_numpy(values).dtype
    assert np.array_equal(found.numpy(), values)


def test_users_get_rows_with_arrays_of_their_space() -> None:
    value = {"map": np.eye(3, 5, dtype=np.bool_), "speed": 2.5, "on": (np.arange(11) % 2).astype(np.int8), "flag": True}
    row = OwnEnv.of(ROBOT).row(value, 4.0, truncated=True)
    assert row["obs"]["on"][0].tolist() == [0b10101010, 0b010]
    found = unpack_rows(row, ROBOT)[0]
    for name, wanted in value.items():
        np.testing.assert_array_equal(found["obs"][name], wanted, strict=isinstance(wanted, np.ndarray))
    assert (found["reward"], found["truncated"]) == (4.0, True)


def test_no_bits_are_refused_whatever_a_peer_has_sent() -> None:
    rows = np.zeros(2, step_record(ROBOT).dtype)
    for name in ("map", "on", "flag"):
        rows["obs"][name] = 255
    assert find_flaw(rows) is find_illegal("obs", rows["obs"], ROBOT.obs, packed=True) is None
    rollouts = np.zeros(2, rollout_record(ROBOT, POLICY, 3).dtype)
    rollouts["obs"]["on"] = 255
    assert find_rollout_flaw(rollouts, ROBOT) is None
    rollouts["last_action"][1, 2] = 2
    assert str(find_rollout_flaw(rollouts, ROBOT)).startswith("last_action "), "actions are not packed"


def test_stacks_of_packed_frames_begin_with_their_episode() -> None:
    stacked, steps = env(planes(3, 3), 3), 5
    frames = np.random.default_rng(2).integers(0, 2, (steps + 3, 3, 3)).astype(np.bool_)
    record = rollout_record(stacked, POLICY, steps)
    rows = np.zeros(1, record.dtype)
    rows["obs"][0], rows["first"][0, 2] = as_bits(frames, 2), True
    batch = Rollouts(rows, record, stacked, torch.device("cpu")).batch
    wanted = [[0, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5], [4, 5, 6], [5, 6, 7]]
    assert np.array_equal(batch.obs[:, 0].numpy(), frames[wanted])
    assert batch.obs.dtype == torch.bool
    assert batch.pack(3).unpack().obs.equal(batch.obs)
