"""One policy learns tasks that pay very differently, through all four services."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers import finished, python

pytestmark = pytest.mark.timeout(300)

ENVS = "tests.e2e.task_envs"


def test_a_task_that_pays_ten_thousand_times_as_much_does_not_drown_the_other(tmp_path: Path) -> None:
    """A batch holds rows of both. With one shared value and unit the cheap one stays near chance."""
    run = ("--root", str(tmp_path), "--env", f"{ENVS}:Cheap-v0,{ENVS}:Dear-v0")
    flags = "--plain --name both --total_steps 40000 --learner.batch_size 16 --impala.popart true"
    flags += " --impala.reward_scale 1 --impala.discount 0.5"
    code, out, error = finished(python("-m", "zerobeast", "train", *run, *flags.split()))
    assert code == 0, out[-3000:] + error[-3000:]
    code, out, error = finished(python("-m", "zerobeast", "evaluate", "both", *run, "--episodes", "30", "--json"))
    assert code == 0, error[-3000:]
    cheap, dear = map(json.loads, out.splitlines())
    assert [cheap["env"], dear["env"]] == [f"{ENVS}:Cheap-v0", f"{ENVS}:Dear-v0"]
    assert cheap["mean_return"] >= 6.0, "the most is 8, chance 2"
    assert dear["mean_return"] >= 60_000


def test_environments_that_cannot_be_alike_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    envs = f"{ENVS}:Cheap-v0,{ENVS}:Exact-v0"
    code, _, error = finished(python("-m", "zerobeast", "train", "--plain", "--root", tmp_path, "--env", envs))
    assert (code, error.count("\n")) == (2, 1)
    assert all(part in error for part in (f"{ENVS}:Cheap-v0", f"{ENVS}:Exact-v0", "obs.dtype", "<f4", "|i1"))


def test_games_of_unequal_sizes_train_one_policy_that_is_evaluated_in_each(tmp_path: Path) -> None:
    """An env-server ends the session of an action that its game does not have, and with it the run."""
    games = ["MinAtar/Breakout-v1", "MinAtar/Seaquest-v1"]
    run = ("--root", str(tmp_path), "--env", ",".join(games))
    flags = "--plain --name games --total_steps 2000 --learner.batch_size 32"
    code, out, error = finished(python("-m", "zerobeast", "train", *run, *flags.split()))
    assert code == 0, out[-3000:] + error[-3000:]
    assert "env.pad_obs 10,10,10, env.pad_actions 6" in out
    run = ("--root", str(tmp_path), "--episodes", "1", "--json")
    code, out, error = finished(python("-m", "zerobeast", "evaluate", "games", *run))
    assert code == 0, error[-3000:]
    assert [json.loads(line)["env"] for line in out.splitlines()] == games


def test_a_mix_of_games_is_one_environment_that_trains_and_is_evaluated_by_its_levels(tmp_path: Path) -> None:
    games = "(MinAtar/Breakout-v1,MinAtar/Seaquest-v1"
    run = ("--root", str(tmp_path), "--env", f"zipf{games};2)")
    flags = "--plain --total_steps 2000 --learner.batch_size 32"
    code, out, error = finished(python("-m", "zerobeast", "train", *run, *flags.split()))
    assert code == 0, out[-3000:] + error[-3000:]
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert re.fullmatch(r"zipf-MinAtar-Breakout-v1-impala-\d{8}-\d{6}", folder.name)
    run = ("--root", str(tmp_path), "--sample", "--episodes", "2", "--json", "--levels", "rare,MinAtar/Breakout-v1")
    code, out, error = finished(python("-m", "zerobeast", "evaluate", folder.name, *run))
    assert code == 0, error[-3000:]
    assert [json.loads(line)["info/level"] for line in out.splitlines()] == [1.0, 0.0]
