"""Videos as files: H.264 in an MP4, written as it comes, or a GIF of limited size. A file is whole or not there."""

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zerobeast.common.errors import ConfigError
from zerobeast.common.files.atomic import draft_file, explain_os_errors

Picture = NDArray[np.uint8]  #: [height, width, 3]; height and width are even
Writer = Callable[[Picture], None]  #: appends a picture; raises OSError if the file cannot be written

MAX_FPS = 60.0  #: of more pictures per second, every other one is left out, or more of them
MAX_GIF_BYTES = 2_000_000
MAX_GIF_PICTURES = 240
MAX_GIF_FPS = 25.0
MIN_GIF_FPS = 8.0  #: a GIF that would show fewer pictures per second is played faster than real time
MAX_GIF_SIDE = 640  #: so that even two pictures of noise are no larger than a file may be
LAST_MS = 1500  #: for the last picture of a GIF
COLOURS = 128
CODEC = "libx264"
QUALITY = {"crf": "22", "preset": "veryfast"}


@contextmanager
def video_file(path: Path, fps: float) -> Iterator[Writer]:
    """Write a video, which is at its path once the context is left without an error; else nothing is left of it.

    Args:
      path: ends in .mp4 or .gif.
      fps: pictures per second.

    Raises:
      ConfigError: it cannot be written, or there is no codec.
      ModuleNotFoundError: PyAV or Pillow is not installed.
    """
    with explain_os_errors(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_file(path, durable=False) as draft:
            draft.touch()
            with KINDS[path.suffix](draft, fps) as add:
                yield add


def check_path(path: Path) -> None:
    """Raise ConfigError for a file of another kind, or a folder."""
    if path.suffix not in KINDS or path.is_dir():
        raise ConfigError(path=str(path), expected=f"a file that ends in {' or '.join(KINDS)}")


@contextmanager
def mp4(path: Path, fps: float) -> Iterator[Writer]:
    """A stream: memory does not grow with its length."""
    import av

    if CODEC not in av.codecs_available:
        raise ConfigError(f"PyAV was built without {CODEC}; a .gif needs no codec")
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream: Any = None
        number, every = count(), math.ceil(fps / MAX_FPS)

        def add(picture: Picture) -> None:
            nonlocal stream
            if next(number) % every:
                return
            if stream is None:
                stream = container.add_stream(CODEC, Fraction(fps / every).limit_denominator(1000), options=QUALITY)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt, stream.thread_count = "yuv420p", 1
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")))

        yield add
        container.mux(stream.encode(None))


@contextmanager
def gif(path: Path, fps: float) -> Iterator[Writer]:
    """At most so many pictures, evenly over the time, and the last: whenever there are more, every other one goes."""
    kept, last, every, number = list[Any](), np.zeros((2, 2, 3), np.uint8), math.ceil(fps / MAX_GIF_FPS), count()

    def add(picture: Picture) -> None:
        nonlocal kept, last, every
        last = picture
        if next(number) % every == 0:
            kept.append(_image(picture))
        if len(kept) > MAX_GIF_PICTURES:
            kept, every = kept[::2], 2 * every

    yield add
    end = _image(last)
    for _ in range(math.ceil(LAST_MS / 1000 * fps / every)):  # for so long it may have been given already
        kept.pop() if kept[1:] and kept[-1] == end else None
    kept.append(end)
    while len(data := _encode_gif(kept, every / fps)) > MAX_GIF_BYTES:
        kept, every = [*kept[:-1:2], kept[-1]], 2 * every
    path.write_bytes(data)


def _encode_gif(images: list[Any], seconds: float) -> bytes:
    """A GIF with one palette, that of some of its pictures; each is shown for so long, but in a long one shorter."""
    sheet = Image.fromarray(np.concatenate([np.asarray(image) for image in images[:: max(1, len(images) // 16)]]))
    palette = sheet.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    duration = max(20, 10 * round(100 * min(seconds, 1 / MIN_GIF_FPS)))  # a GIF counts hundredths of a second
    durations, file = [duration] * len(others) + [LAST_MS], io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0, optimize=False)
    return file.getvalue()


def _image(picture: Picture) -> Any:
    image = Image.fromarray(picture)
    image.thumbnail((MAX_GIF_SIDE, MAX_GIF_SIDE), Image.Resampling.LANCZOS)
    return image


KINDS = {".mp4": mp4, ".gif": gif}
