"""The frames of the rows of a ring, T + k per row for stacks of k, compressed after the rows instead of in them."""

import math
import mmap
import os
import struct
import weakref
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError, StoreError, raise_as
from zerobeast.common.wire import Block, RecordSpec
from zerobeast.rl.replay.disk import PAGE, round_to_pages

Compression = Literal["none", "zstd"]
Ints = NDArray[np.int64]

LEVEL = 1  #: of zstd. Level 3 is no smaller, 1 a bit faster: 18 to 43 us for the 24 frames of an Atari row
_LENGTH = struct.Struct("<q")  #: length of the compressed frames, stored before them


class CompressedFrames:
    """Frames of bytes, those of a row compressed as one piece: each resembles the one before it.

    On Atari a row decompresses as fast as the frames of one transition would if each were compressed alone, and takes a
    quarter of the bytes. Each slot has space for incompressible frames, most of it a hole in the file: disk blocks are
    allocated page by page as content is written. A slot whose content gets shorter keeps its blocks, and will need them
    again.

    Frames are written by pwrite, which reports a full disk as an error; a store to a hole of a mapped file would be a
    SIGBUS. Both use the same kernel pages, so frames are read from the mapping, and outlive the process as well.

    Args:
      record: of a row with its frames.
      path: of the file.
      content: the file, mapped.
      start: offset of the space of slot 0.
    """

    def __init__(self, record: RecordSpec, path: Path, content: mmap.mmap, start: int) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._compressor, self._decompressor = zstandard.ZstdCompressor(LEVEL), zstandard.ZstdDecompressor()
        self._row: NDArray[np.uint8] = np.empty(record.fields[0].shape, np.uint8)  #: the frames that were read last
        self._bytes = self._row.reshape(-1)
        self._path, self._content, self._start, self._space = path, memoryview(content), start, max_row_bytes(record)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def write(self, slot: int, row: NDArray[np.uint8]) -> bytes:
        """Store the frames of a row [bytes]; returns what was stored, for a checksum.

        Raises:
          StoreError: the disk is full.
        """
        packed = self._compressor.compress(row[: self._row.size].data)
        written = content = _LENGTH.pack(len(packed)) + packed
        at = self._start + slot * self._space
        with raise_as(StoreError, f"{self._path} cannot hold more frames", OSError):
            while content:
                done = os.pwrite(self._fd, content, at)
                content, at = content[done:], at + done
        return written

    def read_stored(self, slot: int) -> memoryview:
        """What `write` stored, as it is in the file; of a torn row, anything."""
        at = self._start + slot * self._space
        (length,) = _LENGTH.unpack_from(self._content, at)
        return self._content[at : at + min(max(0, length) + _LENGTH.size, self._space)]

    def take(self, slots: Ints, at: Ints) -> NDArray[np.uint8]:
        """[N, M, *frame]: the frames `at` [N, M] of rows in `slots` [N], each of which is decompressed once."""
        taken = np.empty((*at.shape, *self._row.shape[1:]), np.uint8)
        order = np.argsort(slots, kind="stable")
        rows, starts = np.unique(slots[order], return_index=True)
        for slot, asked in zip(rows.tolist(), np.split(order, starts[1:]), strict=True):
            taken[asked] = self._unpack(slot)[at[asked]]
        return taken

    def _unpack(self, slot: int) -> NDArray[np.uint8]:
        """[T + k, *frame] of a row, valid until the next call: new memory for each call would cost more."""
        reader = self._decompressor.stream_reader(self.read_stored(slot)[_LENGTH.size :])
        try:
            size = reader.readinto(self._bytes)
        except self._error:
            size = 0
        if size != self._row.size:
            raise StoreError(f"{self._path} has damaged frames, perhaps because of the disk: --fresh starts over")
        return self._row


def max_row_bytes(record: RecordSpec) -> int:
    """Maximum bytes that the compressed frames of one row take."""
    size = math.prod(record.fields[0].shape)
    return round_to_pages(_LENGTH.size + size + size // 256 + PAGE // 32)  # zstd's own bound and a little more


def without_frames(record: RecordSpec, env_id: str) -> RecordSpec:
    """The record of a row without its frames, which are compressed. Called before there is a file.

    Raises:
      ConfigError: the frames are not one array of bytes or bits.
      StoreError: zstandard is not installed.
    """
    with raise_as(StoreError, "replay_compression zstd", ModuleNotFoundError):
        import_module("zstandard")
    obs = record.fields[0]
    if isinstance(obs, Block) or obs.dtype != "|u1":
        what = "several arrays" if isinstance(obs, Block) else f"of type {obs.dtype}"
        expected = "one array of bytes (|u1) or bits"
        raise ConfigError(f"replay_compression zstd: observations of {env_id} are {what}, expected {expected}")
    return RecordSpec(record.fields[1:])
