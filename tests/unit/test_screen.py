"""The display of a run when nothing reads its output."""

import os
import sys

import pytest

from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.pages import Snapshot
from zerobeast.launcher.screen import make_screen

RUN = RunConfig(name="x")


def test_a_pipe_without_a_reader_ends_the_showing_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.launcher.screen.LINE_PERIOD_S", 0.0)
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    screen = make_screen(RUN, Snapshot, plain=True)
    for _ in range(3):
        screen.update(stopping=False)
    screen.close()
    assert screen._broken
    with pytest.raises(BrokenPipeError):
        stream.close()
