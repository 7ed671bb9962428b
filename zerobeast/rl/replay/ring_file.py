"""A ring of rows in one memory-mapped file, which the next process finds as a killed process left it.

    ring = RingFile(config.store, record, env, capacity=50_000)
    ring.after(0)                       # slots of the rows that are there, oldest first
    slots = ring.next(len(rows))        # slots that the next rows will overwrite
    ring.write(row, origin, task)       # when this returns, the row outlives the process

The kernel keeps the pages of a mapped file when a process dies, so a store to memory is all that durability takes: no
flush, no log. Rows may not survive a power loss; those torn by one are found by their checksums.

    page 0            MAGIC, format, capacity, T, bytes of a row, digest of the layout
    headers           [capacity, 8] int64: insert number, `Origin`, task, checksum
    priorities        [capacity, T] float32, of the item that begins at each step; 0: none yet
    rows              [capacity] of the rollout record, without frames if these are compressed
    frames            [capacity] spaces of `zerobeast.rl.replay.frames.CompressedFrames`, mostly holes

Insert number i, counted from 1, is in slot (i - 1) % capacity, so the numbers alone show where the ring begins. While a
row is being written its number is 0: a kill loses that row and no other.

A step takes 1 / T of a row. On Atari (84 x 84, stack of 4, T = 20) a row is 24 frames and 0.5 kB, so a step takes
8.5 kB, 0.3 of the 28.2 kB that its stack takes. Compressed, it takes 0.24 to 0.43 kB.
"""

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import StoreError, raise_as
from zerobeast.common.files.atomic import draft_file
from zerobeast.common.files.regular_files import open_regular
from zerobeast.common.text import split_ids
from zerobeast.common.wire import Block, EnvSpec, Field, Origin, RecordSpec
from zerobeast.common.wire.checks import find_rollout_flaw
from zerobeast.common.wire.codec import pack
from zerobeast.rl.replay.disk import PAGE, check_space, format_size, free_bytes, round_to_pages
from zerobeast.rl.replay.frames import CompressedFrames, Compression, max_row_bytes, without_frames

log = logging.getLogger(__name__)

NAME = "replay"  #: of the file in its folder
MAGIC = b"ZBREPLAY"
FORMATS: dict[int, Compression] = {1: "none", 2: "zstd"}
EXPECTED_RATIO = 10  #: minimum compression ratio expected of frames of bytes; most do far better
AT_ONCE = 64  #: rows that are checked together
_START = struct.Struct("<8s4q32s")
_HEADER = struct.Struct("<7q")  #: what a checksum covers, besides the row
_ENTRIES = 8  #: of a header, int64 each
NUMBER, ORIGIN, TASK, CHECKSUM = 0, slice(1, 1 + len(Origin._fields)), 6, 7

Ints = NDArray[np.int64]


class RingFile:
    """See the module. One process at a time uses it: the learner holds a lock on the run's folder.

    Args:
      folder: where it is, or will be.
      record: of a row, made for unrolls.
      env: what the rows hold.
      capacity: rows.
      compression: of frames.

    Raises:
      StoreError: there is no room, no local disk or no zstandard, or the file there does not hold these rows.
      ConfigError: such observations cannot be compressed.

    Attributes:
      rows: [capacity] of the record, without the frames if they are compressed.
      frames: of the rows, if they are compressed.
      priorities: [capacity, T] float32.
      number: of the newest insert.
    """

    def __init__(
        self, folder: Path, record: RecordSpec, env: EnvSpec, capacity: int, compression: Compression = "none"
    ) -> None:
        self.path, self.capacity = folder / NAME, capacity
        self.steps = record.dtype["first"].shape[0] - 1  #: T
        self._compression = compression
        packs = compression == "zstd"
        kept, beside = (without_frames(record, env.env_id), max_row_bytes(record)) if packs else (record, 0)
        start = record.offset(kept.fields[0].name)
        self._kept = slice(start, start + kept.row_bytes)  #: the bytes of a row that are in `rows`
        priorities_at = PAGE + round_to_pages(capacity * _ENTRIES * 8)
        rows_at = priorities_at + round_to_pages(capacity * self.steps * 4)
        self._allocated = frames_at = rows_at + round_to_pages(capacity * kept.row_bytes)
        self._size = frames_at + capacity * beside
        self._expected = frames_at + capacity * round_to_pages(beside // EXPECTED_RATIO)
        digest = blake2b(
            pack([env.env_id, [_describe_field(field) for field in record.fields]]), digest_size=32
        ).digest()
        form = next(number for number, name in FORMATS.items() if name == compression)
        self._start = _START.pack(MAGIC, form, capacity, self.steps, record.row_bytes, digest)
        content = self._open()
        self._headers: Ints = np.ndarray((capacity, _ENTRIES), np.int64, content, PAGE)
        self.priorities: NDArray[np.float32] = np.ndarray((capacity, self.steps), np.float32, content, priorities_at)
        self.rows: NDArray[np.void] = np.ndarray((capacity,), kept.dtype, content, rows_at)
        self._bytes: NDArray[np.uint8] = np.ndarray((capacity, kept.row_bytes), np.uint8, content, rows_at)
        self.frames = CompressedFrames(record, self.path, content, frames_at) if packs else None
        self.number = 0
        self._drop_torn()
        log.info(
            "the replay takes %s, %.0f bytes a step; its disk has %s free, and memory, which caches it, is %s",
            f"about {format_size(self._expected)}, at most {format_size(self._size)}"
            if packs
            else format_size(self._size),
            self._expected / (capacity * self.steps),
            format_size(free_bytes(folder)),
            format_size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        )

    def after(self, number: int) -> Ints:
        """Slots of the rows that were inserted after insert `number`, oldest first; 0: of all that are there."""
        numbers = self._headers[:, NUMBER]
        slots: Ints = np.flatnonzero(numbers > max(0, number))
        return slots[np.argsort(numbers[slots])]

    def origins(self, slots: Ints) -> list[Origin]:
        """Where rows came from."""
        return [Origin._make(origin) for origin in self._headers[slots, ORIGIN].tolist()]

    def next(self, count: int) -> Ints:
        """Slots of the next `count` rows, at most `capacity` of them."""
        return (self.number + np.arange(min(count, self.capacity))) % self.capacity

    def write(self, row: NDArray[np.uint8], origin: Sequence[int], task: int) -> int:
        """Write the bytes of a row in place of the oldest row; returns its slot.

        Raises:
          StoreError: frames are compressed and the disk is full. The slot is then empty.
        """
        slot, number = self.number % self.capacity, self.number + 1
        header = self._headers[slot]
        header[NUMBER] = 0  # from here on the slot is empty
        kept = row[self._kept]
        self._bytes[slot, : len(kept)] = kept
        frames = self.frames.write(slot, row) if self.frames else b""
        self.priorities[slot] = 0.0
        checksum = _checksum(number, *origin, task, content=(self._bytes[slot].data, frames))
        header[ORIGIN], header[TASK], header[CHECKSUM] = origin, task, checksum
        header[NUMBER] = number  # one aligned store: the row is there
        self.number = number
        return slot

    def skip_to(self, number: int) -> None:
        """Continue as if `number` rows had been inserted, because they were, perhaps into a file that is lost."""
        self.number = number
        self._headers[self._headers[:, NUMBER] <= number - self.capacity, NUMBER] = 0

    def _open(self) -> mmap.mmap:
        """The file's content, for as long as anything refers to it."""
        with raise_as(StoreError, f"{self.path} cannot hold a replay of {format_size(self._expected)}", OSError):
            self.path.parent.resolve().mkdir(parents=True, exist_ok=True)  # a link may lead to none yet
            if not self.path.exists() or self._is_void():
                self._make()
            with open_regular(self.path, "r+b") as file:
                self._check(file.read(_START.size), os.fstat(file.fileno()).st_size)
                os.posix_fallocate(file.fileno(), 0, self._allocated)  # a copied file may have holes
                return mmap.mmap(file.fileno(), self._size)

    def _is_void(self) -> bool:
        """Whether the file there was made for other rows, of which none has come."""
        with open_regular(self.path) as file:
            start = file.read(_START.size)
            if len(start) < _START.size or not start.startswith(MAGIC) or start == self._start:
                return False
            capacity = min(_START.unpack(start)[2], os.fstat(file.fileno()).st_size // _ENTRIES // 8)
        return not np.fromfile(self.path, np.int64, max(0, capacity) * _ENTRIES, offset=PAGE)[::_ENTRIES].any()

    def _make(self) -> None:
        """Make a file without rows. Mapped blocks are allocated first: a full disk would be a SIGBUS later."""
        check_space(self.path.parent, self._expected)
        with draft_file(self.path, durable=True) as draft, draft.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self._allocated)
            file.truncate(self._size)
            file.write(self._start)

    def _check(self, start: bytes, size: int) -> None:
        """Refuse a file that does not hold these rows, and leave it as it is."""
        another = "use another run name, or --fresh to begin anew"
        if len(start) < _START.size or not start.startswith(MAGIC):
            raise StoreError(f"{self.path} is no replay of this program: {another}")
        _, form, capacity, steps, _, _ = _START.unpack(start)
        for what, theirs, ours in (
            ("replay_compression", FORMATS.get(form, f"{form} (unknown)"), self._compression),
            ("learner.unroll_length", steps, self.steps),
            ("replay_size", capacity * steps, self.capacity * self.steps),
        ):
            if theirs != ours:
                raise StoreError(f"{self.path} was made with {what} {theirs}, this run has {ours}: {another}")
        if start != self._start:
            changed = "another environment, policy or version of this program (net.core_width, sync.rule?)"
            raise StoreError(f"{self.path} was made with {changed}: {another}")
        if size != self._size:
            raise StoreError(f"{self.path} has {size} bytes, expected {self._size}: {another}")
        check_space(self.path.parent, 0)

    def _drop_torn(self) -> None:
        """Drop the rows that are torn, or that the ring has come round to since."""
        headers = self._headers
        slots = np.flatnonzero(headers[:, NUMBER])
        torn = [slot for slot in slots.tolist() if not self._whole(slot)]
        headers[torn, NUMBER] = 0
        self.skip_to(int(headers[:, NUMBER].max()))
        if torn:
            log.warning("%s: %d rows are dropped, which were torn when the machine went down", self.path, len(torn))

    def drop_impossible(self, env: EnvSpec) -> None:
        """Drop the rows that no learner would have taken: anyone may have written a file whose checksums are right."""
        numbers, reasons = self._headers[:, NUMBER], []
        for start in range(0, self.capacity, AT_ONCE):
            some = start + np.flatnonzero(numbers[start : start + AT_ONCE])
            if len(some) and self._flaw(env, slice(start, start + AT_ONCE)):
                flaws = {slot: self._flaw(env, slice(slot, slot + 1)) for slot in some.tolist()}
                reasons += [(slot, flaw) for slot, flaw in flaws.items() if flaw]
        numbers[[slot for slot, _ in reasons]] = 0
        if reasons:
            log.warning("%s: %d rows are dropped, which cannot be right: %s", self.path, len(reasons), reasons[0][1])

    def _flaw(self, env: EnvSpec, slots: slice) -> str | None:
        """What is wrong with these rows, as a sentence, or None; slots without a row may hold anything."""
        (*_, row, rows), task = origin = self._headers[slots, ORIGIN].T, self._headers[slots, TASK]
        if (task < 0).any() or (task >= len(split_ids(env.env_id))).any():
            return f"its task is none of {env.env_id}"
        if (origin[0] < 0).any() or (row >= np.maximum(rows, 1)).any():
            return "it comes from no message"
        return find_rollout_flaw(self.rows[slots], env)

    def _whole(self, slot: int) -> bool:
        *header, checksum = self._headers[slot].tolist()
        number = header[0]
        in_place = 0 < number < 1 << 62 and (number - 1) % self.capacity == slot
        content = self._bytes[slot].data, self.frames.read_stored(slot) if self.frames else b""
        return in_place and bool(checksum == _checksum(*header, content=content))


def _checksum(*header: int, content: Iterable[bytes | memoryview]) -> int:
    checksum = zlib.crc32(_HEADER.pack(*header))
    for part in content:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _describe_field(field: Field | Block) -> list[object]:
    content = field.dtype if isinstance(field, Field) else [_describe_field(part) for part in field.fields]
    return [field.name, content, list(field.shape)]
