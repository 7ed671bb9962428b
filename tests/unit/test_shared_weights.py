"""Weights as one flat row of bytes, and in shared memory: whole versions or none, whichever process is killed."""

import itertools
import multiprocessing
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.build.batches import MINATAR
from tests.helpers import no_file_longer_than, wait_until
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import checksum
from zerobeast.rl.acting.weights_inbox import LOOK_PERIOD_S, LocalWeights
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.nets import weights
from zerobeast.rl.nets.shared_weights import STATE, VERSION, WeightsReader, WeightsWriter
from zerobeast.rl.nets.weights import load_flat, module_dtypes, tensor_sizes
from zerobeast.testing.network import network

KILLS = 40


class Net(torch.nn.Module):
    """Weights in two formats and a count, all equal to `value`."""

    def __init__(self, value: float = 0.0, size: int = 50_001) -> None:
        super().__init__()
        self.exact = torch.nn.Parameter(torch.full((3,), value))
        self.rounded = torch.nn.Parameter(torch.full((size,), value).bfloat16())
        self.register_buffer("count", torch.full((), int(value)))


def read(reader: WeightsReader) -> tuple[int, Net] | None:
    if (found := reader.read()) is None:
        return None
    net = Net(-1.0)
    load_flat(net, found[1], module_dtypes(net))
    return found[0], net


def taken(reader: WeightsReader) -> tuple[int, Net]:
    found = read(reader)
    assert found is not None
    return found


def whole(net: Net) -> float:
    """The one value that all entries of a net have."""
    values = {*net.exact.tolist(), *net.rounded.tolist(), float(net.count)}
    assert len(values) == 1, values
    return float(values.pop())


def test_each_version_is_read_once_as_it_was_written(tmp_path: Path) -> None:
    writer = WeightsWriter(tmp_path / "w", Net(), epoch=7)
    reader = WeightsReader(tmp_path / "w", Net())
    assert (reader.epoch, reader.newer()) == (7, False)
    for version in (0, 3, 4):
        writer.write(Net(float(version)).float(), version)  # the trained net, in other formats
        assert reader.newer()
        assert [taken(reader)[0], whole(taken(reader)[1])] == [version, version]
        assert not reader.newer()
    writer.write(Net(5.0), 5)
    writer.write(Net(6.0), 6)
    assert taken(reader)[0] == 6, "the newest"
    writer.close()
    assert not (tmp_path / "w").exists()
    assert whole(taken(reader)[1]) == 6.0, "what is mapped outlives the writer"


def test_a_torn_copy_is_noticed_even_if_the_states_are_even(tmp_path: Path) -> None:
    """As on a processor that makes the stores of a state visible before those of the weights."""
    writer = WeightsWriter(tmp_path / "w", Net(), epoch=1)
    reader = WeightsReader(tmp_path / "w", Net())
    for version in (1, 2, 3):
        writer.write(Net(float(version)), version)
    place = writer.memory.places[0]
    before, torn = place.copy(), slice(len(place) // 2, None)
    place[torn] = 7
    assert reader.read() is None
    place[torn] = before[torn]
    writer.memory.header[VERSION] = 2
    assert reader.read() is None, "nor do weights pass for those of another version"
    writer.memory.header[VERSION] = 3
    assert whole(taken(reader)[1]) == 3.0


def write_for_ever(place: Path) -> None:
    writer, version = WeightsWriter(place, Net(), epoch=os.getpid()), 0
    while True:
        writer.write(Net(float(version % 100)), version)
        version += 1


@contextmanager
def to_be_killed(target: Callable[[Path], None], place: Path) -> Iterator[BaseProcess]:
    process = multiprocessing.get_context("fork").Process(target=target, args=(place,), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_readers_of_a_writer_that_never_rests_see_each_version_whole_and_once(tmp_path: Path) -> None:
    place, versions = tmp_path / "w", list[int]()
    with to_be_killed(write_for_ever, place):
        wait_until(place.exists)
        reader = WeightsReader(place, Net())
        while len(versions) < 50:
            if reader.newer() and (found := read(reader)):
                assert whole(found[1]) == found[0] % 100
                versions.append(found[0])
    assert versions == sorted(set(versions))


@pytest.mark.slow
def test_whenever_a_writer_is_killed_its_last_version_is_whole_and_its_successor_is_found(tmp_path: Path) -> None:
    place, dice, torn = tmp_path / "w", random.Random(1), 0
    local, clock = LocalWeights(place, Net()), itertools.count(0.0, LOOK_PERIOD_S)

    def follows(epoch: int | None) -> bool:
        local.serves(next(clock))
        return local.reader is not None and local.reader.epoch == epoch and local.reader.newer()

    for _ in range(KILLS):
        with to_be_killed(write_for_ever, place) as process:
            wait_until(lambda: follows(process.pid))
            time.sleep(dice.uniform(0, 0.01))
        assert local.reader is not None
        torn += any(state % 2 for state in local.reader.memory.header[STATE:][:2])
        version, net = taken(local.reader)
        assert whole(net) == version % 100
    assert torn > 0, "some were killed while they wrote"


def test_weights_of_another_net_are_refused(tmp_path: Path) -> None:
    renamed = Net()
    renamed.other = renamed.exact
    del renamed.exact
    for other in (Net(size=3), Net().float(), renamed):
        writer = WeightsWriter(tmp_path / "w", other, epoch=1)
        with pytest.raises(ValueError, match="weights"):
            WeightsReader(tmp_path / "w", Net())
        assert WeightsReader(tmp_path / "w", other).epoch == 1
        writer.close()


def test_memory_that_could_shrink_under_its_readers_is_not_read(tmp_path: Path) -> None:
    WeightsWriter(tmp_path / "w", Net(), epoch=1)
    pid, file, n_bytes, epoch = (tmp_path / "w").read_text().split()
    plain = os.memfd_create("plain")
    os.write(plain, os.pread(int(file), 1 << 20, 0))
    (tmp_path / "w").write_text(f"{pid} {plain} {n_bytes} {epoch}")
    with pytest.raises(ValueError, match="could shrink"):
        WeightsReader(tmp_path / "w", Net())
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(int(file), 10)
    os.close(plain)


def test_without_enough_memory_there_is_no_writer_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("of a learner that was killed")
    with no_file_longer_than(100_000), pytest.raises(OSError, match="large"):  # it applies to memory files, too
        WeightsWriter(tmp_path / "w", Net(), epoch=1)
    assert not list(tmp_path.iterdir())


def test_a_file_that_points_to_another_run_is_refused(tmp_path: Path) -> None:
    for name, epoch in (("a", 1), ("b", 2)):
        WeightsWriter(tmp_path / name, Net(), epoch)
    assert [WeightsReader(tmp_path / name, Net()).epoch for name in ("a", "b")] == [1, 2]
    first, second = ((tmp_path / name).read_text().split() for name in ("a", "b"))
    (tmp_path / "a").write_text(" ".join([*second[:3], first[3]]))
    with pytest.raises(ValueError, match="learner"):
        WeightsReader(tmp_path / "a", Net())


@pytest.mark.parametrize("kind", ["folder", "pipe", "endless", "loop", "socket"])
def test_what_is_in_place_of_a_file_is_an_error_for_readers_and_replaced_if_possible(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w"
    with socket.socket(socket.AF_UNIX) as here:
        {
            "folder": place.mkdir,
            "pipe": lambda: os.mkfifo(place),
            "endless": lambda: place.symlink_to("/dev/zero"),
            "loop": lambda: place.symlink_to(place),
            "socket": lambda: here.bind(str(place)),
        }[kind]()
        with pytest.raises((OSError, ValueError)):
            WeightsReader(place, Net())
        with pytest.raises(IsADirectoryError) if kind == "folder" else nullcontext():
            WeightsWriter(place, Net(), epoch=1)
            assert WeightsReader(place, Net()).epoch == 1


def test_a_learner_that_was_started_again_is_followed_and_an_unusable_file_is_not(tmp_path: Path) -> None:
    local = LocalWeights(place := tmp_path / "l.weights", Net())
    assert not local.serves(0.0)
    assert local.newest() is None
    now, pipe, here = 0.0, os.pipe(), socket.socket(socket.AF_UNIX)
    n_bytes = sum(tensor_sizes(Net(), module_dtypes(Net())))
    own = [f"{os.getpid()} {number} {n_bytes} 1" for number in (0, *pipe, here.fileno())]
    others = [f"999999999 3 {n_bytes} 1", f"-1 -1 {n_bytes} 1", "1 1 9999999999999999999999 1", "9" * 10_000, "", "1 2"]
    for content in (*own, *others, "\xff\0\n"):
        place.write_text(content, "latin-1")
        local.serves(now := now + LOOK_PERIOD_S)
        assert local.reader is None, content
    first = WeightsWriter(place, Net(), epoch=1)
    first.write(Net(1.0), 1)
    assert local.newest() is None, "it looks only now and then"
    local.serves(now := now + LOOK_PERIOD_S)
    found = local.newest()
    assert found is not None
    assert found[:2] == (1, 1)
    again = WeightsWriter(place, Net(), epoch=2)
    again.write(Net(0.0), 0)
    assert local.serves(now + LOOK_PERIOD_S)
    assert local.reader is not None
    assert (local.reader.epoch, np.size(local.newest()[2])) == (2, found[2].size)
    here.close()
    for file in pipe:
        os.close(file)


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
