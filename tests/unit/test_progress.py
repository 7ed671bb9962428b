"""The line of progress of a script, whatever stands in the place of stdout."""

import io
import sys
from types import SimpleNamespace

import pytest

from zerobeast.api.progress import Progress


def shown(monkeypatch: pytest.MonkeyPatch, stream: object, *, wanted: bool = True) -> None:
    """Show progress to this instead of stdout."""
    monkeypatch.setattr(sys, "stdout", stream)
    with Progress("cart in runs/cart", iter(["1/3", "2/3", "3/3"]).__next__, wanted=wanted) as progress:
        progress.update()
        progress.update()  # which is not due


def test_any_object_with_write_can_stand_for_stdout_and_a_terminal_has_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
