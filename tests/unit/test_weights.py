"""Weights as one flat row of bytes; that they arrive as they were is a rule of networks."""

import struct

import numpy as np
import pytest
import torch

from tests.build.batches import MINATAR
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import checksum
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.nets import weights
from zerobeast.testing.network import network


def recurrent(seed: int = 1, **settings: object) -> PolicyAndValue:
    return network("auto", MINATAR, seed, core="lstm", **settings)


def test_a_snapshot_is_every_tensor_in_order_as_float32_or_as_a_count_and_does_not_follow_the_weights() -> None:
    net = recurrent()
    net.agent_steps.fill_(12_345_678_901)
    tensors = net.state_dict().items()
    expected = b"".join(t.numpy().astype("<i8" if name == "agent_steps" else "<f4").tobytes() for name, t in tensors)
    snapshot = weights.flatten(net)
    torch.nn.init.zeros_(net.get_parameter("value.weight"))
    assert snapshot.dtype == np.uint8
    assert snapshot.tobytes() == expected
    assert not snapshot.flags.writeable


def test_memory_layout_and_number_format_do_not_show_in_a_snapshot() -> None:
    net, lowered = recurrent(), recurrent()
    assert np.array_equal(weights.flatten(lowered.to(memory_format=torch.channels_last)), weights.flatten(net))
    lowered.lower(torch.bfloat16)
    assert weights.layout_id(lowered) == weights.layout_id(net)
    places = [parameter.data_ptr() for parameter in lowered.parameters()]
    weights.load_flat(lowered, weights.flatten(net))
    rounded = net.body.torsos[0].get_parameter("dense.weight").bfloat16()
    assert torch.equal(lowered.body.torsos[0].get_parameter("dense.weight"), rounded)
    assert [parameter.data_ptr() for parameter in lowered.parameters()] == places, "loading is in place"


@pytest.mark.parametrize("before", [0, 1])
def test_counts_arrive_exactly_wherever_they_stand(before: int) -> None:
    def module(count: int) -> torch.nn.Module:
        made = torch.nn.Module()
        made.register_buffer("before", torch.ones(before))
        made.register_buffer("count", torch.tensor(count))
        return made

    other = module(0)
    weights.load_flat(other, weights.flatten(module(2**53 + 1)))
    assert int(other.count) == 2**53 + 1


@pytest.mark.parametrize("change", [-4, 1])
def test_a_buffer_of_another_size_is_refused_and_changes_nothing(change: int) -> None:
    net = recurrent()
    before = weights.flatten(net)
    with pytest.raises(RemoteProtocolError):
        weights.load_flat(net, np.zeros(len(before) + change, np.uint8))
    assert np.array_equal(weights.flatten(net), before)


def test_the_layout_id_distinguishes_architectures_and_the_checksum_one_flipped_bit() -> None:
    nets = (recurrent(), recurrent(hidden_size=64), torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    ids = {weights.layout_id(net) for net in nets}
    assert len(ids) == 4
    assert all(0 <= layout < 1 << 32 for layout in ids)
    snapshot = weights.flatten(nets[0]).copy()
    before = checksum(snapshot)
    assert before == sum(struct.unpack(f"<{len(snapshot) // 4}I", snapshot.tobytes())) % 2**32
    snapshot[17] ^= 1
    assert checksum(snapshot) != before
