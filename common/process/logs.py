"""How every process logs: one line per event, on stderr.

12:00:01.250 learner-0 I ready

Peers determine how often some events happen, and part of their text. So each statement in the code gets a limited share
of the log, events have a maximum length, and text that would control a terminal or pass for another line is escaped.
"""

import logging
import time
from collections import deque
from typing import Any

from zerobeast.common.text import printable

MAX_PER_PERIOD = 20  #: events of one log statement
PERIOD_S = 60.0
MAX_TEXT = 8192  #: characters of one event, its traceback included
MAX_WARNING = 300  #: characters of a warning elsewhere
#: number and text of the newest warnings of this process, for its health page
WARNINGS: deque[tuple[int, str]] = deque(maxlen=3)


def escape_remarks() -> None:
    """Have what a process without such a log writes to stderr escaped as well."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Lines())


def log_to_stderr(name: str) -> None:
    """Send the log, and Python's warnings with it, to stderr under the name of this process."""
    handler = _Stderr()
    layout = f"%(asctime)s.%(msecs)03d {name} %(levelname).1s %(message)s"
    handler.setFormatter(_Lines(layout, datefmt="%H:%M:%S"))
    handler.addFilter(_Share())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class _Stderr(logging.StreamHandler[Any]):
    """Writes events to stderr, and keeps the newest warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if record.levelno >= logging.WARNING:
            number = WARNINGS[-1][0] + 1 if WARNINGS else 1
            WARNINGS.append((number, record.getMessage().partition("\n")[0][:MAX_WARNING]))


class _Lines(logging.Formatter):
    """Formats an event with every line but the first indented."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}... ({len(text)} characters)"
        return printable(text, lines=True).replace("\n", "\n  ")


class _Share(logging.Filter):
    """Lets each statement log up to its share; the first event of its next period gives the number left out."""

    def __init__(self) -> None:
        super().__init__()
        self._events: dict[tuple[str, int], tuple[float, int]] = {}  # when the period began, and events since

    def filter(self, record: logging.LogRecord) -> bool:
        statement, now = (record.pathname, record.lineno), time.monotonic()
        began, events = self._events.get(statement, (now, 0))
        if now - began > PERIOD_S:
            if events > MAX_PER_PERIOD:
                record.msg, record.args = f"{record.getMessage()} (and {events - MAX_PER_PERIOD} more before)", ()
            began, events = now, 0
        self._events[statement] = began, events + 1
        return events < MAX_PER_PERIOD
