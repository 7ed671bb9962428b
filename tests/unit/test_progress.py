"""The line of progress of a script, whatever stands in the place of stdout."""

import io
import sys

import pytest

from zerobeast.api.progress import Progress
from zerobeast.common.process.terminal import is_terminal, write


class Tee:
    """What programs put in the place of stdout: `write` alone."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown() -> None:
    with Progress("cart in runs/cart", iter(["1/3", "2/3", "3/3"]).__next__) as progress:
        progress.update()
        progress.update()  # which is not due


def test_any_object_with_write_can_stand_for_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    tee = Tee()
    monkeypatch.setattr(sys, "stdout", tee)
    shown()
    assert tee.text == "cart in runs/cart\n1/3\n2/3\n"
    with Progress("cart", lambda: "1/3", wanted=False) as progress:
        progress.update()
    assert tee.text.count("\n") == 3, "nothing is shown unless it is wanted"


def test_there_may_be_no_stdout_or_a_closed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        assert not is_terminal()
        shown()
    write("text")


def test_a_terminal_has_one_line_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "10")
    shown()
    assert terminal.getvalue() == "cart in runs/cart\n1/3      \r2/3      \n"
