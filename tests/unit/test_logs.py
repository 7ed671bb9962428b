"""The log, and how little a peer can do to it."""

import io
import logging
from collections.abc import Iterator

import pytest

from zerobeast.common.process import logs

ERASE = "\x1b[2K\r"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What goes to stderr."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", stream)
    logs.log_to_stderr("learner-0")
    yield stream
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def say(text: str) -> None:
    logging.getLogger("zerobeast.services.x").warning("refused: %s", text)


def test_a_peer_can_neither_forge_a_line_nor_control_the_terminal(written: io.StringIO) -> None:
    say(f"x\n12:00:00.000 learner-0 I all is well{ERASE}\x9b31m\u2028y")
    first, second = written.getvalue().splitlines()
    assert second.startswith("  12:00:00.000 learner-0 I all is well")
    assert (first + second).isprintable()
    assert r"\x1b[2K\r\x9b31m\u2028y" in second
    time, name, level, *_ = first.split()
    assert (time.count(":"), name, level) == (2, "learner-0", "W")
    before = len(written.getvalue())
    say("x" * 1_000_000)
    assert len(written.getvalue()) - before < logs.MAX_TEXT + 100


def test_a_log_statement_is_rate_limited_and_reports_later_how_much_it_left_out(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for number in range(1000):
        say(f"number {number}")
    logging.getLogger("zerobeast.services.x").info("another statement")
    lines = written.getvalue().splitlines()
    assert len(lines) == logs.MAX_PER_PERIOD + 1
    now += logs.PERIOD_S + 1
    say("again")
    say("and again")
    *_, again, and_again = written.getvalue().splitlines()
    assert again.endswith(f"refused: again (and {1000 - logs.MAX_PER_PERIOD} more before)")
    assert and_again.endswith("refused: and again")
