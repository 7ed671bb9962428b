"""Shows a run on the user's terminal, or as lines if there is none. Showing may fail; training goes on."""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from zerobeast.common.settings import RunConfig
from zerobeast.common.text import printable
from zerobeast.launcher import view
from zerobeast.launcher.pages import Snapshot

REFRESH_S = 0.5
LINE_PERIOD_S = 5.0
MIN_WIDTH = 40


class PipeConsole(Console):
    """A rich console that draws text as it is, and on which a pipe without a reader costs the picture, not the process.

    What services report may look like rich's markup, which would make links of it, or end the drawing by an error.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Called when a write fails; the error is handled in `Screen.update`."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Its segments of text, with escapes for what is on a page or in a setting and would control the terminal."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, lines=True), style, control)


class Screen:
    """Shows the snapshots of `source` at its own pace.

    Args:
      run: whose services they show.
      source: returns the newest snapshot.
      console: where to show it.
      live: whether one picture is redrawn in place; else a line is added now and then, and every new warning.
      full: whether the lines have all figures of the services.
    """

    def __init__(
        self, run: RunConfig, source: Callable[[], Snapshot], console: Console, *, live: bool, full: bool = False
    ) -> None:
        self._run, self._source, self._console, self._full = run, source, console, full
        self._live = live and Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._due = 0.0 if live else time.monotonic() + LINE_PERIOD_S  # there is nothing to show yet
        self._broken = False
        self._warned: tuple[str, ...] = ()
        if self._live:
            self._live.start()

    def update(self, *, stopping: bool) -> None:
        """Show the newest snapshot when it is time. Called every turn of the supervisor."""
        now = time.monotonic()
        if self._broken or now < self._due:
            return
        self._due = now + (REFRESH_S if self._live else LINE_PERIOD_S)
        try:
            if self._live:
                self._live.update(view.render_screen(self._run, self._source(), stopping=stopping), refresh=True)
            else:
                self._add_lines(self._source(), stopping=stopping)
        except (OSError, ValueError):  # the terminal or the pipe is gone
            self._broken = True

    def _add_lines(self, snapshot: Snapshot, *, stopping: bool) -> None:
        news = [warning for warning in snapshot.warnings if warning not in self._warned]
        self._warned = snapshot.warnings
        line = view.format_line(self._run, snapshot, stopping=stopping, full=self._full)
        for text in (*news, f"{time.strftime('%H:%M:%S')} {line}"):
            self._console.out(text)
        self._console.file.flush()

    def close(self) -> None:
        """Draw a picture for the last time and give the cursor back."""
        if self._live:
            self._due = 0.0
            self.update(stopping=False)
            with contextlib.suppress(OSError, ValueError):
                self._live.stop()


def make_screen(run: RunConfig, source: Callable[[], Snapshot], *, plain: bool, full: bool = False) -> Screen:
    """The live view on a terminal that can show it; lines elsewhere, or if `plain`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # blocks and bars on a terminal that only has ASCII
    console = PipeConsole()
    able = console.is_terminal and not console.is_dumb_terminal and console.width >= MIN_WIDTH
    return Screen(run, source, console, live=able and not plain, full=full)
