"""The file of a replay: what is found again, and what is not taken for one."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replay_fakes import BITS, PLAIN, POLICY, T
from zerobeast.common.errors import ConfigError
from zerobeast.common.replay import disk
from zerobeast.common.replay.ring_file import NAME, PAGE, RingFile
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.specs import EnvSpec

pytestmark = pytest.mark.unit

CAPACITY = 6


def opened(folder: Path, env: EnvSpec = PLAIN, capacity: int = CAPACITY, steps: int = T) -> RingFile:
    return RingFile(folder, rollout_record(env, POLICY, steps), env, capacity)


def content(ring: RingFile, number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, ring.rows.itemsize).astype(np.uint8)


def origin(number: int) -> tuple[int, ...]:
    return (2**62 + number, 1, number, 0, 1)


def fill(ring: RingFile, *numbers: int) -> None:
    for number in numbers:
        ring.write(content(ring, number), origin(number), number % 3)


def numbers(ring: RingFile) -> list[int]:
    """Of the rows that are there, in order; each has to be whole."""
    slots = ring.numbered
    found = [each.seq for each in ring.origins(slots)]
    for slot, number in zip(slots, found, strict=True):
        assert ring.origins(slots[slots == slot]) == [origin(number)]
        assert np.array_equal(ring.rows[slot : slot + 1].view(np.uint8), content(ring, number))
    return found


@pytest.mark.parametrize("written", [0, 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY + 2])
def test_the_newest_rows_are_found_again_in_order(tmp_path: Path, written: int) -> None:
    fill(opened(tmp_path), *range(1, written + 1))
    ring = opened(tmp_path)
    expected = list(range(max(1, written - CAPACITY + 1), written + 1))
    assert numbers(ring) == expected
    assert [each.seq for each in ring.origins(ring.after(written - 2))] == expected[-2:]
    fill(ring, written + 1)
    assert numbers(opened(tmp_path))[-1] == ring.number == written + 1


def test_a_row_that_is_cut_short_is_lost_and_no_other(tmp_path: Path) -> None:
    ring = opened(tmp_path)
    fill(ring, *range(1, 9))
    with pytest.raises(struct.error):
        ring.write(content(ring, 9), (1, 2, 3, 4, None), 0)  # type: ignore[arg-type]
    again = opened(tmp_path)
    assert numbers(again) == [4, 5, 6, 7, 8]
    fill(again, 9)
    assert numbers(opened(tmp_path)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("part", ["number", "seq", "task", "checksum", "row"])
def test_rows_torn_by_a_machine_that_went_down_are_dropped(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring = opened(tmp_path)
    fill(ring, *range(1, 9))
    raw = np.memmap(tmp_path / NAME, np.int64, "r+")
    header = PAGE // 8 + 8 * (5 - 1)
    at = {"number": 0, "seq": 3, "task": 6, "checksum": 7}
    if part == "row":
        ring.rows[4:5].view(np.uint8)[-1] ^= 1
    else:
        raw[header + at[part]] += CAPACITY
    assert numbers(opened(tmp_path)) == [3, 4, 6, 7, 8]
    assert "1 rows are dropped" in caplog.text
    caplog.clear()
    assert numbers(opened(tmp_path)) == [3, 4, 6, 7, 8]
    assert "dropped" not in caplog.text, "they are not there any more"


def test_rows_of_an_earlier_round_go_where_the_newer_ones_were_lost(tmp_path: Path) -> None:
    before = opened(tmp_path)
    fill(before, *range(1, 8))
    kept = (tmp_path / NAME).read_bytes()
    fill(before, 8)
    page = PAGE + 64  # the header of row 8 never reached the disk, and neither did the row
    size = before.rows.itemsize
    at = len(kept) - -(-size * CAPACITY // PAGE) * PAGE
    fill(before, *range(9, 12))
    with (tmp_path / NAME).open("r+b") as file:
        for start, length in ((page, 64), (at + size, size)):
            file.seek(start)
            file.write(kept[start : start + length])
    assert numbers(opened(tmp_path)) == [6, 7, 9, 10, 11], "2 is whole, but older than what the ring can hold"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.write_bytes(b""), "no replay of this program"),
        (lambda path: path.write_bytes(b"ZBREPLAY"), "no replay of this program"),
        (lambda path: path.write_bytes(b"%PDF-1.7" + bytes(10_000)), "no replay of this program"),
        (lambda path: path.write_bytes(path.read_bytes()[:-PAGE]), "bytes, expected"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "no replay of this program"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes, expected"),
        (lambda path: path.write_bytes(b"ZBREPLAY\2" + path.read_bytes()[9:]), "format 2, this run has 1"),
    ],
)
def test_a_file_of_another_kind_is_named_and_left_alone(tmp_path: Path, spoil: Any, sentence: str) -> None:
    fill(opened(tmp_path), 1, 2)
    path = tmp_path / NAME
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=sentence) as caught:
        opened(tmp_path)
    assert str(path) in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"env": BITS}, "another environment"),
        ({"env": EnvSpec("Other-v0", PLAIN.obs, PLAIN.action)}, "another environment"),
        ({"capacity": 7}, f"replay_size {6 * T}, this run has {7 * T}"),
        ({"steps": T + 1}, f"learner.unroll_length {T}, this run has {T + 1}"),
    ],
)
def test_a_replay_of_other_rows_is_named_and_left_alone(tmp_path: Path, other: Any, sentence: str) -> None:
    fill(opened(tmp_path), 1, 2)
    with pytest.raises(ConfigError, match=sentence):
        opened(tmp_path, **other)
    assert numbers(opened(tmp_path)) == [1, 2]


def test_a_draft_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "replay.new").write_bytes(b"half")
    assert numbers(opened(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_replay_larger_than_the_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the replay takes .* GB, the disk has .*: lower replay_size"):
        opened(tmp_path, capacity=10**12)
    assert list(tmp_path.iterdir()) == []


TABLE = """\
22 27 0:21 / / rw - ext4 /dev/vda rw
23 22 0:22 / /runs rw shared:1 - nfs4 server:/runs rw
24 22 0:23 / /runs/with\\040space rw - tmpfs tmpfs rw
25 23 0:24 / /runs/mine rw - 9p share rw
26 25 0:25 / /runs/mine rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home", "ext4"),
        ("/runs/x", "nfs4"),
        ("/runsX", "ext4"),
        ("/runs/with space/x", "tmpfs"),
        ("/runs/mine/x", "xfs"),
    ],
)
def test_the_mount_that_hides_the_others_says_what_a_folder_is_on(tmp_path: Path, folder: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert disk.file_system(Path(folder), table) == kind
    assert disk.file_system(Path(folder), tmp_path / "none") == ""


@pytest.mark.parametrize(("kind", "where"), [("tmpfs", "is in memory"), ("nfs4", "another machine")])
def test_no_disk_of_this_machine_no_replay(
    tmp_path: Path, kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    monkeypatch.setattr(disk, "file_system", lambda folder: kind)
    for folder in (tmp_path, tmp_path / "other"):
        with pytest.raises(ConfigError, match=where):
            opened(folder)
