"""What several test files need."""

import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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
