"""Temporary signal handlers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have `handler` called for these signals. A hangup that was ignored before, as under nohup, stays ignored."""
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in numbers if number != signal.SIGHUP or not under_nohup]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
