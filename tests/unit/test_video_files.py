"""Videos are whole or not there, of limited size, and show what policies of every kind say beside the environment."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from tests.build.batches import REACH
from tests.build.folders import policy_run
from tests.helpers import no_file_longer_than
from zerobeast.api.policies import load
from zerobeast.common.errors import ConfigError, DiskError, EnvError
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.playing import video_files
from zerobeast.playing.pictures import BAR, CURVE, PANEL, TAKEN_COLOUR, Painter, VideoFrame
from zerobeast.playing.step_summary import Choice, Span, StepSummary, summarize_step
from zerobeast.playing.video_files import MAX_GIF_PICTURES, check_path, mp4, video_file


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
    write(tmp_path / "two.gif", 15.0, pictures(2))
    with Image.open(tmp_path / "two.gif") as image:
        assert image.n_frames == 2, "each has a colour"  # type: ignore[attr-defined]


def test_a_long_gif_shows_fewer_pictures_until_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(video_files, "MAX_GIF_BYTES", 100_000)
    write(tmp_path / "x.gif", 15.0, np.random.default_rng(0).integers(0, 256, (130, 40, 60, 3), np.uint8))
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


def test_what_cannot_be_written_is_refused_before_the_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


MASKED = EnvSpec("Masked-v0", ArraySpace.box((3,)), ArraySpace.discrete(4), action_mask=True)
KINDS = (Part("kind", ArraySpace.multi_discrete(2, 3)), Part("force", ArraySpace.box((2,), low=(-1.0,), high=(3.0,))))
HYBRID = EnvSpec("Hybrid-v0", ArraySpace.box((3,)), CompositeSpace("dict", KINDS))
MASK = np.array([[True, False, True, True]])


def moment(view: StepSummary | None, size: tuple[int, int] = (210, 160), remark: str = "") -> VideoFrame:
    return VideoFrame(np.full((*size, 3), 200, np.uint8), (), "Env-v0", 1234, -20.5, view, remark)


def colours(picture: np.ndarray) -> set[str]:
    return {f"#{colour:06x}" for colour in np.unique(picture @ np.array([1 << 16, 1 << 8, 1])).tolist()}


@pytest.mark.parametrize(
    ("algo", "env", "heading"),
    [
        ("ppo", MASKED, "action probabilities"),
        ("dqn", MASKED, "action values"),  # bars between the lowest and the highest legal one
        ("sac", REACH, "actions, median and deviation"),
        ("td3", REACH, "actions"),
        ("impala", HYBRID, None),
    ],
)
def test_what_a_policy_of_any_kind_says_is_drawn(tmp_path: Path, algo: str, env: EnvSpec, heading: str | None) -> None:
    small = [f"--{algo}.replay_size=10000"] if algo in ("dqn", "sac", "td3") else []
    policy = load(policy_run(tmp_path, algo, env, *small))
    obs = np.ones((1, *env.obs.arrays[0].shape), np.float32)
    given = {"action_mask": MASK} if env is MASKED else {}
    actions, _ = policy.predict(obs, **given)
    found = summarize_step(policy, obs, None, actions, **given)
    assert heading in (found.heading, None)
    assert (found.value is None) == (env is REACH)
    for part in found.components:
        if isinstance(part, Choice):
            assert part.taken == int(np.argmax(part.bars))
            assert env is HYBRID or part.bars[1] == 0.0, "it is not legal"
        else:
            assert (part.band is None) == (algo == "td3"), "it is not drawn"
            low, high = part.band or (0, 1)
            assert 0 <= low <= part.taken <= high <= 1
    kinds = sorted(type(part).__name__ for part in found.components)
    assert env is not HYBRID or kinds == ["Choice", "Choice", "Span", "Span"]
    assert TAKEN_COLOUR in colours(Painter("run").draw(moment(found)))


@pytest.mark.parametrize(("size", "shown"), [((210, 160), (420, 320)), ((10, 10), (520, 520)), ((99, 999), (64, 640))])
def test_pictures_have_even_sides_and_a_panel(size: tuple[int, int], shown: tuple[int, int]) -> None:
    painter = Painter("run")
    picture = painter.draw(moment(None, size, remark="over"))
    assert picture.shape == (max(400, shown[0]), shown[1] + PANEL, 3)
    assert not any(side % 2 for side in picture.shape[:2])
    assert painter.draw(moment(None, (30, 50))).shape == picture.shape, "one video has one size"
    assert TAKEN_COLOUR in colours(picture), "the remark"
    view = StepSummary(1.0, "actions", [Choice(0, [], [])])
    painter.begin("episode 2")
    first = painter.draw(moment(view))
    painter.draw(moment(view._replace(value=5.0)))
    painter.begin("episode 2")
    assert (painter.draw(moment(view)) == first).all(), "the curve begins anew"


@pytest.mark.parametrize("count", [1, 18, 3000])
def test_any_number_of_choices_and_components_fits(count: int) -> None:
    bars = np.linspace(0.1, 1.0, count).tolist()
    choice, span = Choice(0, bars, [f"{bar:.2f}" for bar in bars]), Span(0.5, (0.2, 0.8), "0.00")
    view = StepSummary(1.5, "action probabilities", [choice])
    drawn = Painter("a run with a name that is much longer than the panel is wide").draw(moment(view))
    assert {TAKEN_COLOUR, CURVE} | ({BAR} if count > 1 else set()) <= colours(drawn)
    for components in ([span] * count, [Choice(1, [0.3, 0.7], ["0.30", "0.70"]), Choice(1, [], [])] * count):
        assert TAKEN_COLOUR in colours(Painter("run").draw(moment(StepSummary(None, "actions", [*components]))))
