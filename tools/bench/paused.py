"""Runs that stand still for a while: all their services are stopped in their tracks, and go on later."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def paused(folder: Path) -> Iterator[None]:
    """All services with status files in a folder, stopped in their tracks. For less than the time that they wait for a
    silent peer.
    """
    try:
        _signal(folder, signal.SIGSTOP)
        yield
    finally:
        _signal(folder, signal.SIGCONT)


@contextlib.contextmanager
def resumed(folder: Path) -> Iterator[None]:
    """Services that are `paused`, going on for a while."""
    try:
        _signal(folder, signal.SIGCONT)
        yield
    finally:
        _signal(folder, signal.SIGSTOP)


def _signal(folder: Path, number: signal.Signals) -> None:
    for path in folder.glob("*.json"):
        with contextlib.suppress(ProcessLookupError):  # it has ended, and must not keep the others as they are
            os.kill(int(json.loads(path.read_text())["pid"]), number)
