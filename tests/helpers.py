"""What several test files need."""

import random
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.specs import RecordSpec

R = TypeVar("R")


def wait_until(probe: Callable[[], R], timeout_s: float = 20.0) -> R:
    """Call `probe` until it returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while True:
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"{probe} stayed false for {timeout_s} s"
        time.sleep(0.002)


@contextmanager
def killed_at_last(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Leave no process and no pipe behind, whatever fails."""
    with process:
        try:
            yield
        finally:
            process.kill()


def free_port(span: int = 3) -> int:
    """A port such that it and its followers are free on loopback."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            for offset in range(span):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return port


def row_layout(spec: RecordSpec) -> list[list[Any]]:
    """[[name, dtype, shape, offset], ...]: what `layout_id` is the fingerprint of, as docs/protocol.md has it."""
    return [[f.name, f.dtype, list(f.shape), spec.dtype.fields[f.name][1]] for f in spec.fields]  # type: ignore[index]


def layout_id(spec: RecordSpec) -> int:
    """32-bit fingerprint: two peers with the same id mean the same bytes."""
    return zlib.crc32(pack(row_layout(spec)))
