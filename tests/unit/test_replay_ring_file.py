"""The file of a replay: which rows are found again, and which files are refused."""

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.replays import PLAIN, POLICY, TREES, T
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire import ArraySpace, EnvSpec, rollout_record
from zerobeast.rl.replay import disk
from zerobeast.rl.replay.disk import PAGE
from zerobeast.rl.replay.ring_file import NAME, RingFile

CAPACITY = 6
FRAMES = EnvSpec("Frames-v0", ArraySpace.box((40, 30), "|u1"), PLAIN.action)  #: two pages per row
RECORD = rollout_record(FRAMES, POLICY, T)


@pytest.fixture(params=["none", "zstd"])
def opened(request: pytest.FixtureRequest) -> Any:
    """Makes rings with one kind of compression, whose frames do not get smaller."""

    def ring(folder: Path, env: EnvSpec = FRAMES, capacity: int = CAPACITY, steps: int = T, **other: str) -> RingFile:
        compression = other.get("compression", request.param)
        return RingFile(folder, rollout_record(env, POLICY, steps), env, capacity, compression)

    return ring


def content(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, RECORD.row_bytes).astype(np.uint8)


def origin(number: int) -> tuple[int, ...]:
    return (2**62 + number, 1, number, 0, 1)


def fill(ring: RingFile, *numbers: int) -> None:
    for number in numbers:
        ring.write(content(number), origin(number), number % 3)


def numbers(ring: RingFile) -> list[int]:
    """Numbers of the rows present, in order; asserts that each row is whole."""
    slots = ring.after(0)
    found = [each.seq for each in ring.origins(slots)]
    for slot, number in zip(slots, found, strict=True):
        assert ring.origins(slots[slots == slot]) == [origin(number)]
        row = content(number).view(RECORD.dtype)[0]
        if ring.frames:
            assert np.array_equal(ring.frames.take(np.array([slot]), np.arange(T + 1)[None])[0], row["obs"])
        assert all(ring.rows[name][slot].tobytes() == row[name].tobytes() for name in ring.rows.dtype.names)
    return found


def changed(ring: RingFile, number: int) -> Any:
    """Write a row, and return where that has changed the file."""
    before = np.fromfile(ring.path, np.uint8)
    fill(ring, number)
    return np.flatnonzero(np.fromfile(ring.path, np.uint8) != before)


@pytest.mark.parametrize("written", [0, CAPACITY, 3 * CAPACITY + 2])
def test_the_newest_rows_are_found_again_in_order(tmp_path: Path, opened: Any, written: int) -> None:
    fill(opened(tmp_path), *range(1, written + 1))
    ring = opened(tmp_path)
    expected = list(range(max(1, written - CAPACITY + 1), written + 1))
    assert numbers(ring) == expected
    assert [each.seq for each in ring.origins(ring.after(written - 2))] == expected[-2:]
    fill(ring, written + 1)
    assert numbers(opened(tmp_path))[-1] == ring.number == written + 1


def test_a_row_whose_write_failed_is_lost_and_no_other(tmp_path: Path, opened: Any) -> None:
    ring = opened(tmp_path)
    fill(ring, *range(1, 9))
    with pytest.raises(struct.error):
        ring.write(content(9), (1, 2, 3, 4, None), 0)  # type: ignore[arg-type]
    again = opened(tmp_path)
    assert numbers(again) == [4, 5, 6, 7, 8]
    fill(again, 9)
    assert numbers(opened(tmp_path)) == [4, 5, 6, 7, 8, 9]


def test_rows_torn_by_a_power_cut_are_dropped(tmp_path: Path, opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(ring := opened(tmp_path), *range(1, 5))
    places = changed(ring, 5)
    fill(ring, *range(6, 9))
    whole = np.fromfile(ring.path, np.uint8)
    for place in {*places[:40].tolist(), *places[40::200].tolist(), places[-1]}:  # header, row and frames
        torn = whole.copy()
        torn[place : place + 1] += CAPACITY  # the number of an insert into the same slot
        torn.tofile(ring.path)
        caplog.clear()
        assert numbers(opened(tmp_path)) == [3, 4, 6, 7, 8], place
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        caplog.clear()
        assert numbers(opened(tmp_path)) == [3, 4, 6, 7, 8]
        assert not caplog.records, "they are not there any more"


def test_rows_of_an_earlier_round_are_dropped_where_newer_ones_were_lost(tmp_path: Path, opened: Any) -> None:
    fill(before := opened(tmp_path), *range(1, 8))
    kept = np.fromfile(before.path, np.uint8)
    places = changed(before, 8)
    fill(before, *range(9, 12))
    now = np.fromfile(before.path, np.uint8)
    now[places] = kept[places]  # nothing of row 8 ever reached the disk
    now.tofile(before.path)
    assert numbers(opened(tmp_path)) == [6, 7, 9, 10, 11], "2 is whole, but older than what the ring can hold"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _content: b"",
        lambda _content: b"%PDF-1.7" + bytes(10_000),
        lambda content: content[:-PAGE],
        lambda content: b"ZBREPLAY\7" + content[9:],
    ],
)
def test_a_file_of_another_kind_is_named_and_left_alone(tmp_path: Path, opened: Any, spoil: Any) -> None:
    fill(opened(tmp_path), 1, 2)
    path = tmp_path / NAME
    path.write_bytes(before := spoil(path.read_bytes()))
    with pytest.raises(ConfigError, match=str(path)):
        opened(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("other", "path"),
    [
        ({"env": replace(FRAMES, frame_stack=2)}, "environment"),
        ({"capacity": 7}, "replay_size"),
        ({"steps": T + 1}, "unroll_length"),
        ({"compression": ""}, "replay_compression"),
    ],
)
def test_a_replay_of_other_rows_is_named_and_left_alone_unless_it_is_empty(
    tmp_path: Path, opened: Any, other: dict[str, Any], path: str
) -> None:
    ring = opened(tmp_path)
    if path == "replay_compression":
        other = {path.removeprefix("replay_"): "none" if ring.frames else "zstd"}
    opened(tmp_path, **other)
    fill(opened(tmp_path), 1, 2)
    with pytest.raises(ConfigError, match=path):
        opened(tmp_path, **other)
    assert numbers(opened(tmp_path)) == [1, 2]


def test_a_draft_that_a_killed_process_left_is_replaced_also_on_another_disk(tmp_path: Path, opened: Any) -> None:
    (place := tmp_path / "disk" / "x-1234").mkdir(parents=True)
    (place / ".replay.new").write_bytes(b"half")
    (tmp_path / "store").symlink_to(place)
    assert numbers(opened(tmp_path / "store")) == []
    assert [path.name for path in place.iterdir()] == [NAME]
    (tmp_path / "gone").symlink_to(tmp_path / "no" / "x-1234")  # a disk that another machine had
    opened(tmp_path / "gone")
    assert (tmp_path / "no" / "x-1234" / NAME).exists()


def test_the_last_and_deepest_mount_decides_the_file_system_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(
        "22 27 0:21 / / rw - ext4 /dev/vda rw\n"
        "23 22 0:22 / /runs rw shared:1 - nfs4 server:/runs rw\n"
        "24 22 0:23 / /runs/with\\040space rw - tmpfs tmpfs rw\n"
        "25 23 0:24 / /runs/mine rw - 9p share rw\n"
        "26 25 0:25 / /runs/mine rw - xfs /dev/vdb rw\n"
    )
    kinds = {"/runs/x": "nfs4", "/runsX": "ext4", "/runs/with space/x": "tmpfs", "/runs/mine/x": "xfs"}
    assert {folder: disk.file_system(Path(folder), tmp_path / "mounts") for folder in kinds} == kinds
    assert disk.file_system(Path("/runs"), tmp_path / "none") == ""


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4"])
def test_a_folder_that_is_not_on_a_disk_of_this_machine_is_refused(
    tmp_path: Path, opened: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    monkeypatch.setattr(disk, "file_system", lambda folder: kind)
    for folder in (tmp_path, tmp_path / "other"):
        with pytest.raises(ConfigError, match=str(folder)):
            opened(folder)


@pytest.mark.parametrize(
    ("env", "capacity", "named"),
    [(PLAIN, 6, "Plain-v0"), (TREES, 6, "Trees-v0"), (FRAMES, 10**12, "replay_size"), (FRAMES, 6, "zstandard")],
)
def test_what_cannot_be_compressed_or_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: EnvSpec, capacity: int, named: str
) -> None:
    if named == "zstandard":
        monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=named):
        RingFile(tmp_path, rollout_record(env, POLICY, T), env, capacity, "zstd")
    assert list(tmp_path.iterdir()) == []


def test_damaged_frames_are_an_error(tmp_path: Path) -> None:
    ring = RingFile(tmp_path, RECORD, FRAMES, CAPACITY, "zstd")
    places = changed(ring, 1)
    frames = places[np.flatnonzero(np.diff(places) > 1000)[-1] + 1]  # the last part of the file
    raw = np.memmap(tmp_path / NAME, np.uint8, "r+")[frames:]
    for damaged in (raw[8:12], raw[:8]):  # the content, and its length
        damaged.fill(7)
        with pytest.raises(ConfigError, match="damaged"):
            ring.frames.take(np.array([0]), np.array([[0]]))
