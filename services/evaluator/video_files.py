"""Videos as files: H.264 in an MP4, written as it comes, or a GIF of limited size. A file is whole or not there."""

import contextlib
import io
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError

Picture = NDArray[np.uint8]  #: [height, width, 3]; height and width are even

MAX_GIF_BYTES = 2_000_000
MAX_GIF_PICTURES = 240
MIN_GIF_PICTURES = 60  #: below that, pictures shrink instead
MAX_GIF_FPS = 25.0
MIN_GIF_FPS = 8.0  #: a GIF that would show fewer pictures per second is played faster than real time
MAX_GIF_WIDTH = 640
LAST_MS = 1500  #: for the last picture of a GIF
COLOURS = 128
QUALITY = {"crf": "22", "preset": "veryfast"}  #: of x264
CODECS = ("libx264", "mpeg4")  #: the first that PyAV was built with


class VideoFile(ABC):
    """A video that is being written.

    Attributes:
      seconds: it takes to play; known once it is finished.
    """

    seconds = 0.0

    @abstractmethod
    def __init__(self, path: Path, fps: float) -> None:
        """Begin to write."""

    @abstractmethod
    def add(self, picture: Picture) -> None:
        """Append a picture. Raises OSError if the file cannot be written."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left. Raises OSError as `add`."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of the file."""


@contextlib.contextmanager
def video_file(path: Path, fps: float) -> Iterator[VideoFile]:
    """Write a video, which is at its path once the context is left without an error; else nothing is left of it.

    Args:
      path: ends in .mp4 or .gif.
      fps: pictures per second.

    Raises:
      ConfigError: it cannot be written, or there is no codec.
      ModuleNotFoundError: PyAV or Pillow is not installed.
    """
    draft = path.with_name(f".{path.name}.new")
    file: VideoFile | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # which may be a link, in the folder of a stranger's run
        draft.touch()
        file = KINDS[path.suffix](draft, fps)
        yield file
        file.finish()
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if file is not None:
            file.abandon()
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_path(path: Path) -> None:
    """Raise ConfigError for a file of another kind, or a folder."""
    if path.suffix not in KINDS or path.is_dir():
        raise ConfigError(f"{path}: expected a file that ends in {' or '.join(KINDS)}")


class Mp4(VideoFile):
    """A stream: memory does not grow with its length."""

    def __init__(self, path: Path, fps: float) -> None:
        import av

        self._codec = next((name for name in CODECS if name in av.codecs_available), "")
        if not self._codec:
            raise ConfigError(f"PyAV was built without {' and '.join(CODECS)}; a .gif needs no codec")
        self._container: Any = av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream: Any = None
        self._fps = Fraction(fps).limit_denominator(1000)

    def add(self, picture: Picture) -> None:
        from av import VideoFrame

        if self._stream is None:
            self._stream = self._container.add_stream(self._codec, self._fps)
            self._stream.height, self._stream.width = picture.shape[:2]
            self._stream.pix_fmt = "yuv420p"
            self._stream.thread_count = 1
            if self._codec == "libx264":
                self._stream.options = QUALITY
        self._write(VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24"))
        self.seconds += float(1 / self._fps)

    def finish(self) -> None:
        self._write(None)
        self._container.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._container.close()

    def _write(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


class Gif(VideoFile):
    """At most so many pictures, evenly over the time: whenever there are more, every other one goes.

    Pillow keeps all pictures of a GIF in memory, so there are few of them; until then they are kept compressed.
    """

    def __init__(self, path: Path, fps: float) -> None:
        import PIL.Image  # noqa: F401 - missing packages are reported before anything is played

        self._path, self._fps = path, fps
        self._every = math.ceil(fps / MAX_GIF_FPS)
        self._count = 0
        self._kept: list[bytes] = []
        self._last: Picture | None = None

    def add(self, picture: Picture) -> None:
        self._last = picture
        if self._count % self._every == 0:
            self._kept.append(zlib.compress(picture.tobytes(), 1))
        self._count += 1
        if len(self._kept) > MAX_GIF_PICTURES:
            self._kept, self._every = self._kept[::2], 2 * self._every

    def finish(self) -> None:
        assert self._last is not None, "a video has pictures"
        self._kept.append(zlib.compress(self._last.tobytes(), 1))  # how it ends
        scale = min(1.0, MAX_GIF_WIDTH / self._last.shape[1])
        while len(data := self._encoded(scale)) > MAX_GIF_BYTES:
            if len(self._kept) > 2 * MIN_GIF_PICTURES:
                self._kept, self._every = [*self._kept[:-1:2], self._kept[-1]], 2 * self._every
            else:
                scale *= max(0.5, 0.95 * math.sqrt(MAX_GIF_BYTES / len(data)))
        self._path.write_bytes(data)

    def abandon(self) -> None:
        self._kept = []

    def _encoded(self, scale: float) -> bytes:
        from PIL import Image

        assert self._last is not None
        (height, width, _), shape = self._last.shape, self._last.shape
        size = round(width * scale), round(height * scale)

        def images() -> Iterator[Any]:
            for packed in self._kept:
                image = Image.fromarray(np.frombuffer(zlib.decompress(packed), np.uint8).reshape(shape))
                yield image if scale == 1.0 else image.resize(size, Image.Resampling.LANCZOS)

        step = max(1, len(self._kept) // 16)
        some = [image for number, image in enumerate(images()) if number % step == 0]
        sheet = Image.fromarray(np.concatenate([np.asarray(image) for image in some]))
        palette = sheet.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        fast = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images())
        seconds = self._every / self._fps
        duration = max(20, 10 * round(100 * min(seconds, 1 / MIN_GIF_FPS)))  # a GIF counts hundredths of a second
        durations = [duration] * (len(self._kept) - 1) + [LAST_MS]
        self.seconds = sum(durations) / 1000
        file = io.BytesIO()
        next(fast).save(file, "GIF", save_all=True, append_images=fast, duration=durations, loop=0, optimize=False)
        return file.getvalue()


KINDS: dict[str, type[VideoFile]] = {".mp4": Mp4, ".gif": Gif}
