"""The rules of a tracker.

    @pytest.mark.parametrize("rule", tracker.RULES, ids=str)
    def test_contract(rule, tmp_path):
        rule("my_package.tracker:Mine", tmp_path)

The reference is one that `beast track --to` takes; the tracker may write to the folder.
"""

import math
from copy import deepcopy
from pathlib import Path

from zerobeast.testing.rules import rule, rules_in
from zerobeast.tracking.sinks import Sink, TrackedRun, load_tracker

GIF = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"  #: of one pixel
CONFIG = {"seed": 3, "env": {"id": "CartPole-v1", "kwargs": {}}, "ppo": {"learning_rate": 0.001}, "tags": ["a", None]}
VALUES = {"train/loss": 0.5, "eval/mean_return/A": -7.0, "train/own": math.nan, "train/far": math.inf}


def _open_sink(name: str, folder: Path) -> Sink:
    return load_tracker(name)(TrackedRun(folder, "project", "run", "0a1b2c3d", deepcopy(CONFIG)))


@rule
def points_and_videos_are_taken_until_the_end(name: str, folder: Path) -> None:
    """All that a run finds out is handed over as it comes, numbers that are not finite among it."""
    (video := folder / "10-sampled.gif").write_bytes(GIF)
    sink = _open_sink(name, folder)
    sink.write(VALUES, 10)
    sink.video(video, 10)
    sink.close()
    assert video.read_bytes() == GIF, "the video of the run was changed"


@rule
def a_point_of_earlier_steps_may_come_later(name: str, folder: Path) -> None:
    """An evaluation takes its time: its point comes after rows of more steps."""
    sink = _open_sink(name, folder)
    for steps in (20, 15, 20):
        sink.write({"train/loss": 0.5}, steps)
    sink.close()


@rule
def a_run_goes_on_in_another_process(name: str, folder: Path) -> None:
    """A run that continues is the same one for the tracker, by its id, and points that were lost come again."""
    for steps in (10, 10, 20):
        sink = _open_sink(name, folder)
        sink.write({"train/loss": 0.5}, steps)
        sink.close()


@rule
def what_is_given_stays_as_it_is(name: str, folder: Path) -> None:
    """The same values are written again if the tracker fails."""
    config, values = deepcopy(CONFIG), {"train/loss": 0.5}
    sink = load_tracker(name)(TrackedRun(folder, "project", "run", "0a1b2c3d", config))
    sink.write(values, 10)
    sink.close()
    assert values == {"train/loss": 0.5}, "the values were changed"
    assert config == CONFIG, "the settings were changed"


RULES = rules_in(globals())
