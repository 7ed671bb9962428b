"""Temporary signal handlers."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

AT_ONCE_S = 1.0  #: signals that follow another within this time belong to the same request to end


@contextlib.contextmanager
def handle_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Have `handler` called for these signals. A hangup that was ignored before, as under nohup, stays ignored.

    Of signals that arrive at once only the first counts: coreutils' `timeout` sends one to its child and one to the
    group, so that the child gets two.
    """
    counted_at = -math.inf

    def once(number: int, frame: FrameType | None) -> None:
        nonlocal counted_at
        if (now := time.monotonic()) - counted_at >= AT_ONCE_S:
            counted_at = now
            handler(number, frame)

    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    caught = [number for number in numbers if number != signal.SIGHUP or not under_nohup]
    before = {number: signal.signal(number, once) for number in caught}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
