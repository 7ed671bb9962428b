"""Draws moments of an episode: what the environment shows, and beside it what the policy makes of it."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from zerobeast.services.evaluator.outlook import Choice, Outlook, Span

MIN_HEIGHT, MAX_HEIGHT, MAX_WIDTH = 400, 520, 640  #: of what the environment shows, which is scaled to that
PANEL, EDGE = 280, 16
MAX_LABEL, NUMBER = 90, 44  #: widths, left and right of a bar
TALLEST, SHORTEST = 22, 5  #: rows
READABLE = 11  #: height of the lowest row with text
CURVE_HEIGHT = 44

BACK, TRACK, DIM, TEXT = "#12161d", "#262d38", "#8b96a5", "#eef2f6"
BAR, TAKEN, CURVE = "#4c78a8", "#f2a541", "#72b7b2"


class Moment(NamedTuple):
    """What is to be drawn."""

    picture: NDArray[np.uint8]  #: [h, w, 3]
    names: Sequence[str]  #: of choices
    env: str
    episode: str
    step: int
    value: float  #: return so far
    outlook: Outlook | None  #: None after the last step
    remark: str = ""


class Painter:
    """Draws all moments of a video in one size, that of the first.

    Args:
      title: of the video.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._size = (0, 0)  #: of what the environment shows
        self._height = 0
        self._values: deque[float] = deque(maxlen=PANEL - 2 * EDGE)

    def begin(self) -> None:
        """Begin an episode: the curve of values starts anew."""
        self._values.clear()

    def draw(self, moment: Moment) -> NDArray[np.uint8]:
        """A picture, [height, width, 3], both even."""
        shown = Image.fromarray(moment.picture)
        if not self._height:
            self._size = _fitted(*shown.size)
            self._height = _even(max(MIN_HEIGHT, self._size[1]))
        scale = min(self._size[0] / shown.width, self._size[1] / shown.height)
        size = round(shown.width * scale), round(shown.height * scale)
        shown = shown.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX)
        canvas = Image.new("RGB", (self._size[0] + PANEL, self._height), BACK)
        canvas.paste(shown, ((self._size[0] - size[0]) // 2, (self._height - size[1]) // 2))
        self._panel(ImageDraw.Draw(canvas), self._size[0] + EDGE, moment)
        return np.asarray(canvas)

    def _panel(self, draw: Any, x: int, moment: Moment) -> None:
        right, view = x + PANEL - 2 * EDGE, moment.outlook
        _text(draw, (x, 14), self._title, 15, TEXT, right - x)
        _text(draw, (x, 35), moment.env, 12, DIM, right - x)
        _text(draw, (x, 52), f"{moment.episode}, step {moment.step:,}", 12, DIM, right - x)
        _text(draw, (x, 80), "return", 12, DIM)
        _text(draw, (x, 95), _number(moment.value), 24, TEXT)
        if view is None:
            _text(draw, (x, 140), moment.remark, 15, TAKEN, right - x)
            return
        y = 140
        if view.value is not None:
            self._values.append(view.value)
            middle = x + (right - x) // 2
            _text(draw, (middle, 80), "value", 12, DIM)
            _text(draw, (middle, 95), _number(view.value), 24, CURVE)
            self._curve(draw, x, y)
            y += CURVE_HEIGHT + 16
        _text(draw, (x, y), view.heading, 12, DIM)
        self._components(draw, x, y + 20, right, moment)

    def _curve(self, draw: Any, x: int, y: int) -> None:
        """The values of the episode so far, or the newest of them, from the lowest to the highest."""
        low, high = min(self._values), max(self._values)
        span = max(high - low, 1e-6)
        points = [(x + i, y + CURVE_HEIGHT * (1 - (value - low) / span)) for i, value in enumerate(self._values)]
        draw.line([(x, y + CURVE_HEIGHT + 1), (x + PANEL - 2 * EDGE, y + CURVE_HEIGHT + 1)], fill=TRACK)
        if len(points) > 1:
            draw.line(points, fill=CURVE, width=2)

    def _components(self, draw: Any, x: int, y: int, right: int, moment: Moment) -> None:
        assert moment.outlook is not None
        components, room = moment.outlook.components, self._height - y - EDGE
        if len(components) == 1 and isinstance(only := components[0], Choice):
            count = len(only.bars) or max(only.taken + 1, len(moment.names))
            height = _row_height(room, count)
            names = [moment.names[i] if moment.names else str(i) for i in range(min(count, room // height))]
            label = _label_width(draw, names, height)
            for i, name in enumerate(names):
                bar, text = (only.bars[i], only.texts[i]) if only.bars else (float(i == only.taken), "")
                _bar(draw, (x, y + i * height, right, height, label), name, bar, text, taken=i == only.taken)
            return
        height = _row_height(room, len(components))
        label = _label_width(draw, [str(len(components))], height)
        for i, component in enumerate(components[: room // height]):
            box = (x, y + i * height, right, height, label)
            if isinstance(component, Span):
                _span(draw, box, str(i), component)
            else:
                _strip(draw, box, str(i), component)


def _label_width(draw: Any, labels: Sequence[str], height: int) -> int:
    widest = max(draw.textlength(label, font=_font(min(13, height - 1))) for label in labels)
    return min(MAX_LABEL, int(widest) + 10)


def _row_height(room: int, count: int) -> int:
    return min(TALLEST, max(SHORTEST, room // max(1, count)))


Box = tuple[int, int, int, int, int]  #: left, top, right and height of a row, and the width of its label


def _track(draw: Any, box: Box, label: str, text: str, colour: str) -> tuple[int, int, int, int]:
    """Write label and number of a row, if it is high enough; returns left, top, right, bottom of the space between."""
    x, y, right, height, width = box
    if height >= READABLE:
        size = min(13, height - 1)
        _text(draw, (x, y + (height - size) // 2 - 1), label, size, colour, width - 6)
        draw.text((right, y + (height - size) // 2 - 1), text, fill=colour, font=_font(size), anchor="ra")
    gap = 2 if height >= READABLE else 1
    return x + width, y + gap, right - NUMBER, y + height - gap - 1


def _bar(draw: Any, box: Box, label: str, bar: float, text: str, *, taken: bool) -> None:
    left, top, right, bottom = _track(draw, box, label, text, TEXT if taken else DIM)
    draw.rectangle((left, top, right, bottom), fill=TRACK)
    if bar > 0:
        draw.rectangle((left, top, left + (right - left) * bar, bottom), fill=TAKEN if taken else BAR)


def _span(draw: Any, box: Box, label: str, span: Span) -> None:
    left, top, right, bottom = _track(draw, box, label, span.text, DIM)
    draw.rectangle((left, top, right, bottom), fill=TRACK)
    if span.band:
        low, high = (left + (right - left) * end for end in span.band)
        draw.rectangle((low, top, max(high, low + 1), bottom), fill=BAR)
    draw.line([((left + right) // 2, top), ((left + right) // 2, bottom)], fill=DIM)
    at = left + (right - left) * span.taken
    draw.rectangle((at - 2, top, at + 2, bottom), fill=TAKEN)


def _strip(draw: Any, box: Box, label: str, choice: Choice) -> None:
    """One component of several: its choices side by side, as wide as they are likely."""
    left, top, right, bottom = _track(draw, box, label, str(choice.taken), DIM)
    draw.rectangle((left, top, right, bottom), fill=TRACK)
    start = float(left)
    for i, bar in enumerate(choice.bars):
        end = start + (right - left) * bar
        draw.rectangle((start, top, max(start, end - 1), bottom), fill=TAKEN if i == choice.taken else BAR)
        start = end


def _fitted(width: int, height: int) -> tuple[int, int]:
    """The size in which what an environment shows is drawn, both even; small pictures grow by whole numbers."""
    scale = min(MAX_HEIGHT / height, MAX_WIDTH / width)
    scale = max(1, int(scale)) if scale >= 1 else scale
    return _even(round(width * scale)), _even(round(height * scale))


def _even(length: int) -> int:
    return length + length % 2


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.2f}"


_fonts: dict[int, Any] = {}


def _font(size: int) -> Any:
    """Pillow's own, so that pictures are the same on every machine."""
    return _fonts.setdefault(size, _fonts.get(size) or ImageFont.load_default(size))


def _text(draw: Any, place: tuple[int, int], text: str, size: int, colour: str, width: int = PANEL) -> None:
    """Write a text, shortened in its middle to a width."""
    font, short = _font(size), text
    for cut in range(1, len(text)):
        if draw.textlength(short, font=font) <= width:
            break
        keep = max(1, (len(text) - cut) // 2)
        short = f"{text[:keep]}..{text[-keep:]}"
    draw.text(place, short, fill=colour, font=font)
