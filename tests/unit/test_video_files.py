"""Videos are whole or not there, whatever happens while they are written, and of limited size."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from tests.helpers import no_file_longer_than
from zerobeast.common.errors import ConfigError, DiskError, EnvError
from zerobeast.services.evaluator import video_files
from zerobeast.services.evaluator.video_files import MAX_GIF_PICTURES, check_path, mp4, video_file


def pictures(count: int) -> list[np.ndarray]:
    return [np.full((48, 64, 3), 5 * i % 256, np.uint8) for i in range(count)]


def test_an_mp4_has_every_picture_at_its_pace(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "x.mp4"
    with video_file(path, 20.0) as add:
        for picture in pictures(30):
            add(picture)
        assert not path.exists()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height, stream.average_rate) == ("h264", 64, 48, 20)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) == 30
    assert abs(frames[20].mean() - 100) < 3
    assert [file.name for file in path.parent.iterdir()] == ["x.mp4"]


def write(path: Path, pace: float, frames: Iterable[np.ndarray]) -> None:
    with video_file(path, pace) as add:
        for picture in frames:
            add(picture)


def test_a_fast_simulation_plays_in_real_time_and_its_end_stays_for_a_moment(tmp_path: Path) -> None:
    for name in ("x.mp4", "x.gif"):
        write(tmp_path / name, 200.0, (np.full((48, 64, 3), min(i * 255 // 399, 255), np.uint8) for i in range(700)))
    with av.open(str(tmp_path / "x.mp4")) as container:
        frames = sum(1 for _ in container.decode(video=0))
        assert frames / container.streams.video[0].average_rate == pytest.approx(3.5)
    with Image.open(tmp_path / "x.gif") as image:
        assert image.size == (64, 48)
        shown = [frame.info["duration"] / 1000 for frame in ImageSequence.Iterator(image)]
    assert sum(shown) == pytest.approx(3.5, abs=0.1)
    assert shown[-1] == pytest.approx(1.5, abs=0.2)


def test_a_long_gif_keeps_pictures_over_its_whole_length_and_its_end(tmp_path: Path) -> None:
    with video_file(tmp_path / "x.gif", 15.0) as add:
        for i in range(3000):
            picture = np.full((8, 8, 3), i * 255 // 2999, np.uint8)
            picture[i // 16 * 7 % 8] = 128, 0, 255  # or Pillow shows one for the time of two that are alike
            add(picture)
    with Image.open(tmp_path / "x.gif") as image:
        assert MAX_GIF_PICTURES // 3 < image.n_frames <= MAX_GIF_PICTURES + 1  # type: ignore[attr-defined]
        assert image.info["duration"] == 120, "faster than real time"
        image.seek(image.n_frames // 2)  # type: ignore[attr-defined]
        assert abs(np.asarray(image.convert("RGB")).mean() - 128) < 10
        image.seek(image.n_frames - 1)  # type: ignore[attr-defined]
        assert np.asarray(image.convert("RGB")).max() > 250


def test_a_gif_of_noise_shows_fewer_pictures_until_it_is_small_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_files, "MAX_GIF_BYTES", 100_000)
    noise = np.random.default_rng(0).integers(0, 256, (130, 40, 60, 3), np.uint8)
    write(tmp_path / "x.gif", 15.0, noise)
    assert 0 < (tmp_path / "x.gif").stat().st_size <= 100_000
    with Image.open(tmp_path / "x.gif") as image:
        assert image.size == (60, 40)
        assert 2 <= image.n_frames < 130  # type: ignore[attr-defined]


def failing(count: int) -> Iterator[np.ndarray]:
    yield from pictures(count)
    raise EnvError("the environment failed")


@pytest.mark.parametrize(("name", "count"), [("x.mp4", 0), ("x.mp4", 3), ("x.gif", 3)])
def test_what_fails_meanwhile_leaves_the_file_as_it_was(tmp_path: Path, name: str, count: int) -> None:
    (tmp_path / name).write_text("earlier")
    with pytest.raises(EnvError):
        write(tmp_path / name, 15.0, failing(count))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "earlier")]


@pytest.mark.parametrize("name", ["x.mp4", "x.gif"])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), np.uint8)
    with no_file_longer_than(20_000), pytest.raises(DiskError):
        write(tmp_path / name, 15.0, noise)
    assert not list(tmp_path.iterdir())


def test_a_link_in_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / ".x.mp4.new").symlink_to(tmp_path / "other")
    write(tmp_path / "x.mp4", 15.0, pictures(1))
    assert (tmp_path / "other").read_text() == "precious"
    assert not (tmp_path / "x.mp4").is_symlink()


def test_what_cannot_be_written_is_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file").touch()
    for name in ("x.avi", "x", "folder.mp4"):
        with pytest.raises(ConfigError, match=r"\.gif"):
            check_path(tmp_path / name)
    with pytest.raises(ConfigError, match=r"x\.mp4"), video_file(tmp_path / "file" / "x.mp4", 15.0):
        pytest.fail("it was begun")
    monkeypatch.setattr(video_files, "CODEC", "nonesuch")
    with pytest.raises(ConfigError, match="nonesuch"), mp4(tmp_path / "x.mp4", 15.0):
        pytest.fail("it was begun")
