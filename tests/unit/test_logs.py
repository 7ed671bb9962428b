"""What a process writes: the log, and how little a peer can do to it, and the line of progress of a script."""

import io
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from zerobeast.api.progress import Progress
from zerobeast.common.process import logs

ERASE = "\x1b[2K\r"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What goes to stderr."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:]
    monkeypatch.setattr("sys.stderr", stream)
    logs.log_to_stderr("learner-0")
    yield stream
    root.handlers[:] = before
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


def shown(monkeypatch: pytest.MonkeyPatch, stream: object, *, wanted: bool = True) -> None:
    """Show progress to this instead of stdout."""
    monkeypatch.setattr(sys, "stdout", stream)
    with Progress("cart in runs/cart", iter(["1/3", "2/3", "3/3"]).__next__, wanted=wanted) as progress:
        progress.update()
        progress.update()  # which is not due


def test_an_object_with_write_can_stand_for_stdout_and_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written, terminal, closed = list[str](), io.StringIO(), io.StringIO()
    shown(monkeypatch, SimpleNamespace(write=written.append))
    assert "".join(written) == "cart in runs/cart\n1/3\n2/3\n"
    closed.close()
    for nothing in (None, closed):
        shown(monkeypatch, nothing)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "10")
    shown(monkeypatch, terminal, wanted=False)
    shown(monkeypatch, terminal)
    assert terminal.getvalue() == "cart in runs/cart\n1/3      \r2/3      \n"
