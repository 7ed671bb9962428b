"""Football and another of EnvPool's environments are trained by all services, and football is evaluated."""

import json
from pathlib import Path

import pytest

from tests.helpers import finished, python

pytestmark = pytest.mark.timeout(300)
SMALL = "--plain --name run --total_steps 256 --actor.env_groups 1 --actor.envs_per_group 2 --learner.batch_size 2"


def train(env_id: str, root: Path) -> None:
    code, out, error = finished(python("-m", "zerobeast", "train", "--root", root, "--env", env_id, *SMALL.split()))
    assert code == 0, out[-3000:] + error[-3000:]


def test_football_is_trained_and_evaluated_with_its_numbers(tmp_path: Path) -> None:
    train("football/academy_empty_goal", tmp_path)
    code, out, error = finished(
        python("-m", "zerobeast", "evaluate", "run", "--root", tmp_path, "--episodes", "1", "--json")
    )
    assert code == 0, error[-3000:]
    found = json.loads(out)
    assert found["info/goal_difference"] == found["mean_return"]
    assert found["info/is_success"] == (found["mean_return"] > 0)


def test_an_observation_of_several_parts_is_trained_on(tmp_path: Path) -> None:
    train("envpool/MiniGrid-Empty-5x5-v0", tmp_path)
    logs = "".join(log.read_text() for log in (tmp_path / "run" / "logs").iterdir())
    assert "envpool/MiniGrid-Empty-5x5-v0: the text of missions is left out" in logs
