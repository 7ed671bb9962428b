"""One environment of each kind that adapters are for is made, stepped and learned from by all services."""

import csv
import math
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import python, wait_for_end

pytestmark = pytest.mark.timeout(600)
PIXELS = "tests.extras.pixels_env:cheetah"
SMALL = "--plain --name run --total_steps 320 --evaluate.times 0 --actor.envs_per_group 4 --learner.batch_size 4"


@pytest.mark.parametrize(
    ("needs", "env_id", "flags"),
    [
        ("minigrid", "MiniGrid-DoorKey-5x5-v0", ()),
        ("Box2D", "LunarLander-v3", ()),
        ("mujoco", "Humanoid-v5", ()),
        ("EGL", PIXELS, ()),
        ("envpool", "football/academy_empty_goal", ()),
        ("envpool", "envpool/MiniGrid-Empty-5x5-v0", ()),
        ("envpool", "envpool/MyWayHome-v1", ("--env.kwargs", "{use_combined_action: true}")),
        ("vizdoom", "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", ()),
        ("Qt5Gui", "envpool/CoinrunEasy-v0", ()),
    ],
)
def test_it_is_learned_from(needs: str, env_id: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    if not (find_spec(needs) or find_library(needs)):
        pytest.skip(f"{needs} is not installed")
    run = ("--root", tmp_path, "--env", env_id, *flags, *SMALL.split())
    code, out, error = wait_for_end(
        python("-m", "zerobeast", "train", *run, variables={"MUJOCO_GL": "egl"}, cwd=tmp_path)
    )
    assert code == 0, out[-3000:] + error[-3000:]
    with (tmp_path / "run" / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    assert int(last["updates"]) > 0
    assert last["nonfinite_updates"] == "0"
    assert all(math.isfinite(float(last[name])) for name in ("loss", "grad_norm"))
