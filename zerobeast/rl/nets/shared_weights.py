"""The newest weights, in memory that a learner shares with processes of the same user on the same machine.

Each version is written once, in the number formats used for acting, to one of two places of an unnamed memory file;
readers copy it from there whenever they like. The state of a place is even while the place is whole and odd while it is
being written, so that readers notice a torn copy; on processors that reorder stores, its checksum shows one. Whenever a
writer dies, the announced place is whole.

A small file names the process that holds the memory, which goes with that process, so there is nothing to clean up.

    writer = WeightsWriter(path, net, epoch)        # the net in the formats used for acting
    writer.write(trained, version)
    reader = WeightsReader(path, net)               # in another process, of a net of the same formats
    if reader.newer(): version, weights = reader.read(); load_flat(net, weights, as_kept)
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zerobeast.common.files.atomic import write_atomically
from zerobeast.rl.nets.weights import Bytes, layout_id, module_dtypes, pack_into, tensor_sizes

HEADER_BYTES = 128
MAX_PLACE_BYTES = 100  #: of the small file: four numbers
FORMAT = 2
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  #: memory that shrank would kill its readers
ATTEMPTS = 8  #: to read while the writer keeps overtaking


class Memory(NamedTuple):
    """The mapped file. Entries of the header are 64-bit words, each written by one store."""

    header: NDArray[np.int64]
    places: tuple[Bytes, Bytes]

    @classmethod
    def of(cls, file: int, n_bytes: int, *, write: bool) -> Memory:
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        content = np.frombuffer(mmap.mmap(file, HEADER_BYTES + 2 * n_bytes, access=access), np.uint8)
        first, second = content[HEADER_BYTES:].reshape(2, n_bytes)
        return cls(content[:HEADER_BYTES].view(np.int64), (first, second))


#: indices in the header: what the file is, how many versions were written, and each place's state, version and checksum
KIND, LAYOUT, EPOCH, VERSION_COUNT, STATE, VERSION, CHECKSUM = 0, 1, 2, 3, 4, 6, 8


class WeightsWriter:
    """The learner's side.

    Args:
      path: of the file that locates the memory.
      net: in the number formats used for acting.
      epoch: of this start of the learner.

    Raises:
      OSError: there is not enough memory, or the system has no such files.
      ConfigError: `path` cannot be written.
    """

    def __init__(self, path: Path, net: nn.Module, epoch: int) -> None:
        self._path, self._kinds = path, module_dtypes(net)
        n_bytes = sum(tensor_sizes(net, self._kinds))
        path.unlink(missing_ok=True)  # a killed learner's: readers must not keep its memory if none replaces it
        self._file = os.memfd_create("zerobeast-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self._file, 0, HEADER_BYTES + 2 * n_bytes)  # else a full memory would be a SIGBUS later
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, SEALS)
            self.memory = Memory.of(self._file, n_bytes, write=True)
            self.memory.header[: VERSION_COUNT + 1] = FORMAT, layout_id(net, self._kinds), epoch, 0
            write_atomically(path, f"{os.getpid()} {self._file} {n_bytes} {epoch}", durable=False)
        except BaseException:
            os.close(self._file)
            raise

    def write(self, net: nn.Module, version: int) -> None:
        """Share a version of a net of the same structure, in any number formats."""
        header, written = self.memory.header, int(self.memory.header[VERSION_COUNT])
        place = written % 2
        header[STATE + place] += 1
        pack_into(net, self._kinds, torch.from_numpy(self.memory.places[place]))
        header[VERSION + place] = version
        header[CHECKSUM + place] = _checksum(self.memory.places[place], version)
        header[STATE + place] += 1
        header[VERSION_COUNT] = written + 1

    def close(self) -> None:
        """Give up the memory; processes that have mapped it keep it."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)


class WeightsReader:
    """The side of the processes that act.

    Args:
      path: as the writer's.
      net: whose weights they are; weights of another layout are refused.

    Raises:
      OSError, ValueError: there is no such memory, or it is not for this net.
    """

    def __init__(self, path: Path, net: nn.Module) -> None:
        pid, file, n_bytes, epoch = map(int, _head(path).split())
        kinds = module_dtypes(net)
        if n_bytes != sum(tensor_sizes(net, kinds)):
            raise ValueError(f"{path}: memory for {n_bytes} bytes of weights, expected {sum(tensor_sizes(net, kinds))}")
        opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.fstat(opened).st_uid != os.getuid() or fcntl.fcntl(opened, fcntl.F_GET_SEALS) & SEALS != SEALS:
                raise ValueError(f"{path}: memory of another user, or memory that could shrink")
            self.memory = Memory.of(opened, n_bytes, write=False)
        finally:
            os.close(opened)
        header = self.memory.header
        if header[KIND] != FORMAT or header[LAYOUT] != layout_id(net, kinds):
            raise ValueError(f"{path}: weights of another layout")
        if header[EPOCH] != epoch:  # the writer has ended, and another learner has the same process id
            raise ValueError(f"{path}: weights of another learner")
        self.epoch = epoch
        self._read = 0  #: versions written when the newest was read
        self._buffer = np.zeros(n_bytes, np.uint8)

    def newer(self) -> bool:
        """Whether there is a version that has not been read yet."""
        return bool(self.memory.header[VERSION_COUNT] > self._read)

    def read(self) -> tuple[int, Bytes] | None:
        """The newest version and its weights, valid until the next call; None if the writer was faster each time."""
        header = self.memory.header
        for _ in range(ATTEMPTS):
            written = int(header[VERSION_COUNT])
            place = (written - 1) % 2
            state = int(header[STATE + place])
            version, checksum = int(header[VERSION + place]), int(header[CHECKSUM + place])
            np.copyto(self._buffer, self.memory.places[place])
            unchanged = state % 2 == 0 and state == int(header[STATE + place])
            if unchanged and checksum == _checksum(self._buffer, version):
                self._read = written
                return version, self._buffer
        return None


def _checksum(weights: Bytes, version: int) -> int:
    """A sum, modulo 2^63: it only has to distinguish versions and mixtures of them, and a CRC takes far longer."""
    words = len(weights) // 8 * 8
    total = int(weights[:words].view(np.uint64).sum(dtype=np.uint64)) + int(weights[words:].sum())
    return (total + version) % 2**63


def _head(path: Path) -> bytes:
    """The beginning of a file of any kind: opening a pipe does not wait for its writer."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.read(file, MAX_PLACE_BYTES)
    finally:
        os.close(file)
