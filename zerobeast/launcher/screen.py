"""Shows a run on the user's terminal, or as lines where there is none. Showing may fail; training goes on."""

from __future__ import annotations

import io
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher import view
from zerobeast.launcher.pages import Snapshot

REFRESH_S = 0.5
LINE_PERIOD_S = 5.0
MIN_WIDTH = 40


class _Console(Console):
    """A rich console on which a pipe without a reader costs the picture, not the process."""

    def on_broken_pipe(self) -> None:
        """Called when a write fails; the error is handled in `Screen.update`."""
        raise BrokenPipeError


class Screen(ABC):
    """Shows the snapshots of `source` at its own pace, `period_s` between two pictures."""

    def __init__(self, run: RunConfig, source: Callable[[], Snapshot], console: Console, period_s: float) -> None:
        self.run, self.source, self.console = run, source, console
        self._period_s = period_s
        self._due = 0.0
        self._broken = False

    def update(self, *, stopping: bool) -> None:
        """Show the newest snapshot when it is time. Called every turn of the supervisor."""
        now = time.monotonic()
        if self._broken or now < self._due:
            return
        self._due = now + self._period_s
        try:
            self.show(self.source(), stopping=stopping)
        except (OSError, ValueError):  # the terminal or the pipe is gone
            self._broken = True

    @abstractmethod
    def show(self, snapshot: Snapshot, *, stopping: bool) -> None:
        """Draw one picture."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class LiveScreen(Screen):
    """Redraws one picture in place."""

    def __init__(self, run: RunConfig, source: Callable[[], Snapshot], console: Console) -> None:
        super().__init__(run, source, console, REFRESH_S)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    def show(self, snapshot: Snapshot, *, stopping: bool) -> None:
        self._live.update(view.screen(self.run, snapshot, stopping=stopping), refresh=True)

    def close(self) -> None:
        """Draw for the last time and give the cursor back."""
        self._due = 0.0
        self.update(stopping=False)
        try:
            self._live.stop()
        except (OSError, ValueError):
            self._broken = True


class LineScreen(Screen):
    """Adds a line now and then, and every new warning."""

    def __init__(self, run: RunConfig, source: Callable[[], Snapshot], console: Console) -> None:
        super().__init__(run, source, console, LINE_PERIOD_S)
        self._due = time.monotonic() + LINE_PERIOD_S  # there is nothing to say yet
        self._warned: tuple[str, ...] = ()

    def show(self, snapshot: Snapshot, *, stopping: bool) -> None:
        for warning in snapshot.warnings:
            if warning not in self._warned:
                self._write(warning)
        self._warned = snapshot.warnings
        self._write(f"{time.strftime('%H:%M:%S')} {view.line(self.run, snapshot, stopping=stopping)}")

    def _write(self, text: str) -> None:
        self.console.out(text, highlight=False)
        self.console.file.flush()


def make_screen(run: RunConfig, source: Callable[[], Snapshot], *, plain: bool) -> Screen:
    """The live view on a terminal that can show it; lines elsewhere, or if `plain`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # blocks and bars on a terminal that only knows ASCII
    console = _Console()
    able = console.is_terminal and not console.is_dumb_terminal and console.width >= MIN_WIDTH
    if plain or not able:
        return LineScreen(run, source, console)
    return LiveScreen(run, source, console)
