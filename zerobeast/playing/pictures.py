"""Draws moments of an episode: what the environment shows, and beside it what the policy makes of it."""

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from zerobeast.common.text import without_folders
from zerobeast.playing.step_summary import Choice, Span, StepSummary

MIN_HEIGHT, MAX_HEIGHT, MAX_WIDTH = 400, 520, 640  #: of what the environment shows, which is scaled to that
PANEL, EDGE = 280, 16
MAX_LABEL, NUMBER = 90, 44  #: widths, left and right of a bar
MAX_ROW_HEIGHT, MIN_ROW_HEIGHT = 22, 5  #: rows
MIN_TEXT_HEIGHT = 11  #: height of the lowest row with text
CURVE_HEIGHT = 44

BACK, TRACK, DIM_COLOUR, TEXT = "#12161d", "#262d38", "#8b96a5", "#eef2f6"
BAR, TAKEN_COLOUR, CURVE = "#4c78a8", "#f2a541", "#72b7b2"


class VideoFrame(NamedTuple):
    """What is to be drawn."""

    picture: NDArray[np.uint8]  #: [h, w, 3]
    names: Sequence[str]  #: of choices
    env: str
    step: int
    value: float  #: return so far
    summary: StepSummary | None  #: None after the last step
    remark: str = ""


class Bar(NamedTuple):
    """A choice."""

    share: float  #: of the width
    text: str
    taken: bool


Box = tuple[int, int, int, int, int]  #: left, top, right and height of a row, and the width of its label


class Painter:
    """Draws all moments of a video in one size, that of the first.

    Args:
      title: of the video.
    """

    def __init__(self, title: str) -> None:
        self._title, self._episode = title, ""
        self._size = (0, 0)  #: of what the environment shows
        self._height = 0
        self._values: deque[float] = deque(maxlen=PANEL - 2 * EDGE)

    def begin(self, episode: str) -> None:
        """Begin an episode, such as "episode 1 of 2": the curve of values starts anew."""
        self._episode = episode
        self._values.clear()

    def draw(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """A picture, [height, width, 3], both even."""
        shown = Image.fromarray(frame.picture)
        if not self._height:
            self._size = _fit_size(*shown.size)
            self._height = _even(max(MIN_HEIGHT, self._size[1]))
        scale = min(self._size[0] / shown.width, self._size[1] / shown.height)
        size = round(shown.width * scale), round(shown.height * scale)
        shown = shown.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX)
        canvas = Image.new("RGB", (self._size[0] + PANEL, self._height), BACK)
        canvas.paste(shown, ((self._size[0] - size[0]) // 2, (self._height - size[1]) // 2))
        self._panel(ImageDraw.Draw(canvas), self._size[0] + EDGE, frame)
        return np.asarray(canvas)

    def _panel(self, draw: Any, x: int, frame: VideoFrame) -> None:
        right, view = x + PANEL - 2 * EDGE, frame.summary
        _text(draw, (x, 14), self._title, 15, TEXT, right - x)
        _text(draw, (x, 35), without_folders(frame.env), 12, DIM_COLOUR, right - x)
        _text(draw, (x, 52), f"{self._episode}, step {frame.step:,}", 12, DIM_COLOUR, right - x)
        _text(draw, (x, 80), "return", 12, DIM_COLOUR)
        _text(draw, (x, 95), _number(frame.value), 24, TEXT)
        if view is None:
            _text(draw, (x, 140), frame.remark, 15, TAKEN_COLOUR, right - x)
            return
        y = 140
        if view.value is not None:
            self._values.append(view.value)
            middle = x + (right - x) // 2
            _text(draw, (middle, 80), "value (clipped)" if view.clipped else "value", 12, DIM_COLOUR)
            _text(draw, (middle, 95), _number(view.value), 24, CURVE)
            self._curve(draw, x, y)
            y += CURVE_HEIGHT + 16
        _text(draw, (x, y), view.heading, 12, DIM_COLOUR)
        self._components(draw, x, y + 20, right, frame)

    def _curve(self, draw: Any, x: int, y: int) -> None:
        """The values of the episode so far, or the newest of them, from the lowest to the highest."""
        low, high = min(self._values), max(self._values)
        span = max(high - low, 1e-6)
        points = [(x + i, y + CURVE_HEIGHT * (1 - (value - low) / span)) for i, value in enumerate(self._values)]
        draw.line([(x, y + CURVE_HEIGHT + 1), (x + PANEL - 2 * EDGE, y + CURVE_HEIGHT + 1)], fill=TRACK)
        if len(points) > 1:
            draw.line(points, fill=CURVE, width=2)

    def _components(self, draw: Any, x: int, y: int, right: int, frame: VideoFrame) -> None:
        rows = _rows(frame)
        height = min(MAX_ROW_HEIGHT, max(MIN_ROW_HEIGHT, (room := self._height - y - EDGE) // max(1, len(rows))))
        rows = rows[: room // height]
        widest = max(draw.textlength(name, font=_font(min(13, height - 1))) for name, _ in rows)
        label = min(MAX_LABEL, int(widest) + 10)
        for i, (name, row) in enumerate(rows):
            _row(draw, (x, y + i * height, right, height, label), name, row)


def _rows(frame: VideoFrame) -> list[tuple[str, Bar | Span]]:
    """What to draw below each other, by name: the choices of the only component, or what was taken of each one."""
    assert frame.summary is not None, "there is one at each step"
    components = frame.summary.components
    if len(components) == 1 and isinstance(only := components[0], Choice):
        count = len(only.bars) or max(only.taken + 1, len(frame.names))
        bars, texts = only.bars or [float(i == only.taken) for i in range(count)], only.texts or [""] * count
        names = frame.names or list(map(str, range(count)))
        return [(name, Bar(bars[i], texts[i], i == only.taken)) for i, name in enumerate(names[:count])]
    rows = [each if isinstance(each, Span) else Bar(each.share, str(each.taken), taken=True) for each in components]
    return [(str(i), row) for i, row in enumerate(rows)]


def _row(draw: Any, box: Box, label: str, row: Bar | Span) -> None:
    """Write label and number, if the row is high enough, and draw what it shows in the space between."""
    x, y, right, height, width = box
    gap, colour = 1, TEXT if isinstance(row, Bar) and row.taken else DIM_COLOUR
    if height >= MIN_TEXT_HEIGHT:
        gap, size = 2, min(13, height - 1)
        line = y + (height - size) // 2 - 1
        _text(draw, (x, line), label, size, colour, width - 6)
        draw.text((right, line), row.text, fill=colour, font=_font(size), anchor="ra")
    left, top, right, bottom = x + width, y + gap, right - NUMBER, y + height - gap - 1
    draw.rectangle((left, top, right, bottom), fill=TRACK)

    def at(share: float) -> float:
        return left + (right - left) * share

    if isinstance(row, Bar):
        if row.share > 0:
            draw.rectangle((left, top, at(row.share), bottom), fill=TAKEN_COLOUR if row.taken else BAR)
    else:
        if row.band:
            low, high = map(at, row.band)
            draw.rectangle((low, top, max(high, low + 1), bottom), fill=BAR)
        draw.line([((left + right) // 2, top), ((left + right) // 2, bottom)], fill=DIM_COLOUR)
        draw.rectangle((at(row.taken) - 2, top, at(row.taken) + 2, bottom), fill=TAKEN_COLOUR)


def _fit_size(width: int, height: int) -> tuple[int, int]:
    """The size in which what an environment shows is drawn, both even; small pictures grow by whole numbers."""
    scale = min(MAX_HEIGHT / height, MAX_WIDTH / width)
    scale = max(1, int(scale)) if scale >= 1 else scale
    return _even(round(width * scale)), _even(round(height * scale))


def _even(length: int) -> int:
    return length + length % 2


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.2f}"


@cache
def _font(size: int) -> Any:
    """Pillow's own, so that pictures are the same on every machine."""
    return ImageFont.load_default(size)


def _text(draw: Any, place: tuple[int, int], text: str, size: int, colour: str, width: int = PANEL) -> None:
    """Write a text, shortened in its middle to a width."""
    font, short = _font(size), text
    for cut in range(1, len(text)):
        if draw.textlength(short, font=font) <= width:
            break
        keep = max(1, (len(text) - cut) // 2)
        short = f"{text[:keep]}..{text[-keep:]}"
    draw.text(place, short, fill=colour, font=font)
