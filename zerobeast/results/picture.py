"""Learning curves as a picture: PNG, SVG or PDF."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast.common.files.atomic import write_atomically
from zerobeast.results.curves import EVALUATION, MeanCurve, describe_meaning
from zerobeast.results.groups import Group
from zerobeast.results.statistics import TWO_RUNS_NOTE
from zerobeast.results.style import ALGORITHMS, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
DPI = 150
PANEL = (5.0, 3.3)  #: inches
LEGEND_LINE, HANDLE, LETTER = 0.19, 0.55, 0.068  #: inches
INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
TEXT = {"font.size": 9, "text.parse_math": False, "axes.titlesize": 10}
LINE = {"linewidth": 1.6, "markersize": 5.5, "markeredgewidth": 0.6}
BAND, FEW_LINES = 0.2, 5  #: how opaque an interval is, if there are no more lines than so few
TITLE_LETTERS = 60  #: in a line, for the width of a panel
MAX_IN_A_ROW = 3
MARKERS = 8  #: on a line, about
LIGHT_COLOURS = {"paper": "#ffffff", "ink": "#1f2328", "grid": "#d8dce0"}
DARK_COLOURS = {"paper": "#0d1117", "ink": "#e6edf3", "grid": "#30363d"}
AXES = {"steps": "agent steps", "frames": "environment frames"}
STEPS = ((1e6, "millions of "), (1e3, "thousands of "), (1.0, ""))
TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


class Line(NamedTuple):
    """A group and its curve."""

    group: Group
    curve: MeanCurve


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    x: str  #: a key of `curves.AXES`, or a column
    lines: Sequence[Line]


class Options(NamedTuple):
    """What is the same in all panels."""

    of: str = EVALUATION  #: a key of `curves.RETURNS`, or a column
    smooth: int = 1
    threshold: float | None = None
    title: str = ""
    dark: bool = False


def refuse_unknown(path: Path) -> None:
    """Raise ConfigError if no picture can have this name."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(path="out", value=str(path), expected=f"a name that ends with {', '.join(FORMATS)}")


def draw_panels(rows: Sequence[Sequence[Panel]], options: Options) -> Figure:
    """Draw rows of panels."""
    import matplotlib as mpl

    from zerobeast.results.figure import NotebookFigure

    paper = DARK_COLOURS if options.dark else LIGHT_COLOURS
    settings: dict[Any, Any] = dict.fromkeys(INK, paper["ink"]) | TEXT
    with mpl.rc_context(settings):
        width, height = max(map(len, rows)), len(rows)
        inches = PANEL[0] * width + 0.6 * (width == 1)
        names = {tuple(map(_label, panel.lines)) for row in rows for panel in row}
        longest = max(len(name) for each in names for name in each)
        columns = max(1, int(inches / (HANDLE + LETTER * longest)))  # of names that fit into the width
        below = LEGEND_LINE * (1 - (-len(rows[0][0].lines) // columns)) if len(names) == 1 else 0.0
        figure = NotebookFigure(
            figsize=(inches, PANEL[1] * height + below), layout="constrained", facecolor=paper["paper"]
        )
        for row, axes_row in zip(rows, figure.subplots(height, width, squeeze=False), strict=True):
            for axes in axes_row[len(row) :]:
                axes.set_axis_off()
            for panel, axes in zip(row, axes_row, strict=False):
                entries = _panel(axes, panel, options, paper)
                title = "" if panel is not row[0] and panel.title == row[0].title else panel.title
                axes.set_title(fill(title.replace(",", ", "), TITLE_LETTERS))  # a list of ids has no spaces
                if panel is row[0]:
                    smoothed = f",\nmean of the last {options.smooth} points" if options.smooth > 1 else ""
                    runs = [run for line in panel.lines for run in line.group.runs]
                    axes.set_ylabel(describe_meaning(options.of, runs).replace(" (", "\n(") + smoothed)
                if len(names) > 1:
                    _legend(axes, entries, panel.lines, loc="best")
        if len(names) == 1:
            _legend(figure, entries, panel.lines, loc="outside lower center", ncols=columns)
        if options.title:
            figure.suptitle(options.title)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file.

    Raises:
      ConfigError: it cannot be written; a file that was there is as it was.
    """
    import matplotlib as mpl

    drawn, kind = io.BytesIO(), path.suffix.lower()
    with mpl.rc_context({"svg.hashsalt": "zerobeast"}):
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(drawn, format=kind[1:], dpi=DPI, metadata=metadata)
    write_atomically(path, drawn.getvalue(), durable=False)


def _legend(place: Any, entries: Sequence[Any], lines: Sequence[Line], **where: Any) -> None:
    """Name the lines, with the number of runs of each, in a figure or in its axes."""
    remark = f" ({TWO_RUNS_NOTE})" * any(len(each.group.runs) == 2 for each in lines)
    known = any(each.curve.low is not None for each in lines)
    meaning = f"mean and 95 % bootstrap interval{remark}" if known else None
    style = {"fontsize": 8, "title_fontsize": 8, "facecolor": "none", "edgecolor": "none"}
    place.legend(entries, [*map(_label, lines)], title=meaning, **style, **where)


def _label(line: Line) -> str:
    """The label of a line; one that began with _ would have no entry in the legend."""
    return f"{' ' * line.group.label.startswith('_')}{line.group.label} (n={len(line.group.runs)})"


def _panel(axes: Any, panel: Panel, options: Options, paper: Mapping[str, str]) -> list[Any]:
    """Draw a panel; returns the lines."""
    furthest = max((float(line.curve.x[-1]) for line in panel.lines if len(line.curve.x)), default=1.0)
    factor, label = _axis(panel.x, furthest)
    others = sorted({line.group.algo for line in panel.lines} - ALGORITHMS.keys())
    drawn = []
    for number, (group, curve) in enumerate(panel.lines):
        own = line_style(group.algo, group.number, group.siblings, others, dark=options.dark)
        x, every = curve.x / factor, _markers(len(curve.x), number, len(panel.lines))
        drawn += axes.plot(x, curve.mean, **own, **LINE, markeredgecolor=paper["paper"], markevery=every)
        if curve.low is not None:
            alpha = BAND if len(panel.lines) <= FEW_LINES else BAND / 2
            axes.fill_between(x, curve.low, curve.high, color=own["color"], alpha=alpha, linewidth=0)
    if options.threshold is not None:
        axes.axhline(options.threshold, color=paper["ink"], linestyle=":", linewidth=1)
    axes.set_facecolor(paper["paper"])
    axes.set_xlabel(label)
    axes.grid(color=paper["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
    return drawn


def _axis(x: str, furthest: float) -> tuple[float, str]:
    """What to divide by, and the label."""
    if x == "time":
        return next((unit for unit in TIMES if furthest >= 2 * unit[0]), TIMES[-1])
    factor, word = next((unit for unit in STEPS if furthest >= unit[0]), STEPS[-1])
    return (factor, word + AXES[x]) if x in AXES else (1.0, x)


def _markers(points: int, number: int, lines: int) -> Any:
    """Which points have markers: all of a few, or else some, at other places than those of the other lines."""
    if points <= 2 * MARKERS:
        return 1
    every = points // MARKERS
    return (round(every * (number + 0.5) / lines) % every, every)
