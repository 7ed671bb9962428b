"""Evaluations while a policy is trained: a curve of known steps, the best policy, and infos."""

import csv
import json
from pathlib import Path

import pytest

import zerobeast
from tests.e2e.test_run import beast
from tests.helpers import finished
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files

INFO = "tests.build.envs:Info-v0"
QUICK = ("--net.hidden_size", "16", "--local.workers", "1", "--evaluate.episodes", "3", "--learner.log_every_s", "0.5")


def test_each_evaluation_is_of_a_known_step_and_the_best_policy_is_kept(tmp_path: Path) -> None:
    flags = (
        "--env",
        INFO,
        "--total_steps",
        "8000",
        "--evaluate.times",
        "2",
        "--learner.checkpoint_every_steps",
        "3000",
    )
    code, _, error = finished(beast("train", "--root", tmp_path, "--name", "x", *flags, *QUICK))
    assert (code, error) == (0, "")
    folder = tmp_path / "x"
    first, last = evaluations.read(folder)
    assert 4000 <= first["agent_steps"] < 8000 == last["agent_steps"]
    for row in (first, last):
        assert (row["episodes"], row["bounded"], len(row["returns"])) == (3, 0, 3)
        assert row["info/episode.l"] == row["mean_length"], "RecordEpisodeStatistics counts the same steps"
    assert not run_files.kept(folder, run_files.TO_EVALUATE)
    kept = [steps for steps, _ in run_files.kept(folder)]
    assert [steps // 3000 for steps in kept] == [1, 2]
    with (folder / run_files.EPISODES).open() as file:
        episodes = list(csv.DictReader(file))
    assert all(json.loads(row["infos"])["episode.l"] == float(row["length"]) for row in episodes)
    with (folder / run_files.METRICS).open() as file:
        assert list(csv.DictReader(file))[-1]["info/episode.l"]
    best = max((last, first), key=lambda row: row["mean_return"])
    for name in (f"x:{kept[0]}", "x:best"):
        code, out, error = finished(
            beast("evaluate", name, "--root", tmp_path, "--episodes", "1", "--json", "--env", INFO)
        )
        assert code == 0, error
        assert json.loads(out)["agent_steps_trained"] == (best["agent_steps"] if name == "x:best" else kept[0])


def test_levels_by_name_are_evaluated_while_training_and_afterwards(tmp_path: Path) -> None:
    run, small = ("--root", tmp_path, "--name", "x"), "zipf/Gridworld-small"
    flags = ("--env", small, "--net.use_lstm", "true", "--total_steps", "2000", "--evaluate.times", "1", *QUICK)
    code, _, error = finished(beast("train", *run, *flags, "--evaluate.levels", "rar"))
    assert (code, (tmp_path / "x").exists()) == (2, False)
    assert "evaluate.levels: 'rar' is unknown, expected any of zipf, uniform, rare" in error
    code, _, error = finished(beast("train", *run, *flags, "--evaluate.levels", "rare,zipf"))
    assert (code, error) == (0, "")
    rare, usual = evaluations.read(tmp_path / "x")
    assert (rare["env"], usual["env"]) == (f"{small}-rare", small)
    assert rare["info/map"] >= 8
    assert rare["info/object"] >= 8
    assert rare["info/is_success"] == rare["mean_return"]
    found = zerobeast.evaluate(tmp_path / "x", levels=["uniform", small], episodes=2)
    assert [each.env for each in found] == [f"{small}-uniform", small]
    assert zerobeast.load(tmp_path / "x").config.evaluate.levels == "rare,zipf"
    assert zerobeast.load(tmp_path / "x", env=small).config.evaluate.levels == "", "they are of the run's environment"
    assert zerobeast.evaluate(tmp_path / "x", f"{small}-uniform", episodes=2).env == f"{small}-uniform"
    with pytest.raises(ConfigError, match=f"env is None, expected one of {small}-rare, {small}; levels may name"):
        zerobeast.evaluate(tmp_path / "x")
