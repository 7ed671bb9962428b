"""How far a run is, while a script or a notebook waits for it: in place where that is possible."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from zerobeast.common.process.terminal import is_terminal, say

IN_PLACE_S, LINES_S = 1.0, 10.0  #: between two updates of a line in place, or between two lines


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Shows a heading, and below it a line of progress that `update` brings up to date at its own pace.

    In a notebook both are one output, which is updated in place, so that a saved notebook has its last state alone.
    On a terminal the line is overwritten; anywhere else one is added now and then.

    Args:
      heading: what runs, and in which folder.
      line: returns the line of progress.
      wanted: whether anything is shown.
    """

    def __init__(self, heading: str, line: Callable[[], object], *, wanted: bool = True) -> None:
        self._line, self._wanted, self._due = line, wanted, -math.inf if wanted else math.inf
        in_place = is_terminal() or in_notebook()
        self._period_s, self._end = (IN_PLACE_S, "\r") if in_place else (LINES_S, "\n")
        self._heading = heading
        self._output: Any = None  #: of a notebook's cell, updated in place
        if wanted and not in_notebook():
            say(heading)

    def __exit__(self, *_error: object) -> None:
        """Show the last state."""
        if self._wanted:
            self._end = "\n"
            self._show()

    def update(self) -> None:
        """Show the line if it is time."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._period_s
            self._show()

    def _show(self) -> None:
        line, width = str(self._line()), shutil.get_terminal_size((120, 24)).columns - 1
        if not in_notebook():
            say(f"{line[:width]:<{width}}" if is_terminal() else line, end=self._end)
            return
        shown = {"text/plain": f"{self._heading}\n{line}"}
        if self._output is None:
            self._output = sys.modules["IPython"].display.display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows outputs that can be updated."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return hasattr(shell, "kernel")
