"""Weights in memory that a learner shares: whole versions or none, whatever ends in between."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zerobeast.common.acting.local_weights import LOOK_PERIOD_S, LocalWeights, place_of
from zerobeast.common.nets import shared_weights
from zerobeast.common.nets.shared_weights import WeightsReader, WeightsWriter
from zerobeast.common.nets.weights import as_kept, load_flat

pytestmark = pytest.mark.unit


class Net(torch.nn.Module):
    """Weights in two formats, and a count; `value` everywhere."""

    def __init__(self, value: float = 0.0, size: int = 50_001) -> None:
        super().__init__()
        self.exact = torch.nn.Parameter(torch.full((3,), value))
        self.rounded = torch.nn.Parameter(torch.full((size,), value).bfloat16())
        self.register_buffer("count", torch.full((), int(value)))


def taken(reader: WeightsReader) -> tuple[int, Net]:
    found = reader.read()
    assert found is not None
    net = Net(-1.0)
    load_flat(net, found[1], as_kept(net))
    return found[0], net


def whole(net: Net) -> float:
    """The one value that all of it has."""
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


def test_a_version_that_is_being_written_is_never_taken_for_whole(tmp_path: Path) -> None:
    writer = WeightsWriter(tmp_path / "w", Net(), epoch=1)
    reader = WeightsReader(tmp_path / "w", Net())
    writer.write(Net(1.0), 1)
    header = writer._memory.header
    header[shared_weights._STATE + 1] += 1  # killed in its second write
    writer._memory.places[1][:100] = 9
    assert whole(taken(reader)[1]) == 1.0
    header[shared_weights._STATE] += 1  # as if it was overtaken each time
    header[shared_weights._WRITTEN] += 2
    assert reader.read() is None
    assert reader.newer(), "and tries again"


def write_for_ever(place: Path) -> None:
    writer, version = WeightsWriter(place, Net(), epoch=os.getpid()), 0
    while True:
        writer.write(Net(float(version % 100)), version)
        version += 1


def test_readers_of_a_writer_that_never_rests_and_is_killed_see_whole_versions_alone(tmp_path: Path) -> None:
    place = tmp_path / "w"
    spawn = multiprocessing.get_context("fork")
    for _ in range(3):
        place.unlink(missing_ok=True)
        process = spawn.Process(target=write_for_ever, args=(place,), daemon=True)
        process.start()
        while not place.exists():
            pass
        reader, versions = WeightsReader(place, Net()), list[int]()
        while len(versions) < 50:
            if reader.newer() and (found := reader.read()):
                net = Net(-1.0)
                load_flat(net, found[1], as_kept(net))
                assert whole(net) == found[0] % 100
                versions.append(found[0])
        assert versions == sorted(set(versions))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        assert whole(taken(reader)[1]) == taken(reader)[0] % 100


@pytest.mark.parametrize("other", [Net(size=3), Net().float()], ids=["size", "format"])
def test_weights_of_another_net_are_none_of_this_readers_business(tmp_path: Path, other: Net) -> None:
    WeightsWriter(tmp_path / "w", other, epoch=1)
    with pytest.raises(ValueError, match="weights, expected"):
        WeightsReader(tmp_path / "w", Net())


def test_weights_of_the_same_size_and_other_names_are_told_apart(tmp_path: Path) -> None:
    class Other(Net):
        def __init__(self) -> None:
            super().__init__()
            self.renamed = self.exact
            del self.exact

    WeightsWriter(tmp_path / "w", Other(), epoch=1)
    with pytest.raises(ValueError, match="weights of another layout"):
        WeightsReader(tmp_path / "w", Net())


def test_memory_that_could_shrink_under_its_readers_is_not_read(tmp_path: Path) -> None:
    sealed = WeightsWriter(tmp_path / "w", Net(), epoch=1)
    pid, file, n_bytes = (tmp_path / "w").read_text().split()
    plain = os.memfd_create("plain")
    os.write(plain, os.pread(int(file), 1 << 20, 0))
    (tmp_path / "w").write_text(f"{pid} {plain} {n_bytes}")
    with pytest.raises(ValueError, match="could shrink"):
        WeightsReader(tmp_path / "w", Net())
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(sealed._file, 10)
    os.close(plain)


def test_without_memory_for_them_there_is_no_writer_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        WeightsWriter(tmp_path / "w", Net(), epoch=1)
    assert not list(tmp_path.iterdir())


def test_a_learner_that_was_started_again_is_followed_and_a_strangers_file_is_not(tmp_path: Path) -> None:
    place = place_of(f"ipc://{tmp_path}/l")
    assert place == tmp_path / "l.weights"
    assert place_of("tcp://learner:5560") is None
    local = LocalWeights(place, Net())
    local.look(0.0)
    assert local.reader is None
    assert local.newest() is None
    now = 0.0
    for text in ("", "1 2", "999999999 3 100014", f"{os.getpid()} 0 100020"):
        place.write_text(text)
        local.look(now := now + LOOK_PERIOD_S)
        assert local.reader is None, text
    first = WeightsWriter(place, Net(), epoch=1)
    first.write(Net(1.0), 1)
    assert local.newest() is None, "it looks only now and then"
    local.look(now := now + LOOK_PERIOD_S)
    found = local.newest()
    assert found is not None
    assert found[0] == 1
    again = WeightsWriter(place, Net(), epoch=2)
    again.write(Net(0.0), 0)
    local.look(now + LOOK_PERIOD_S)
    assert local.reader is not None
    assert (local.reader.epoch, np.size(local.newest()[1])) == (2, found[1].size)
