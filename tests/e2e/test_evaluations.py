"""Evaluations while a policy is trained: a curve of known steps, the best policy, and infos."""

import csv
import json
from pathlib import Path

import pytest

import zerobeast
from tests.build.commands import done, evaluate_run, rows_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files

INFO = "tests.build.envs:Info-v0"
QUICK = ("--net.hidden_size", "16", "--local.workers", "1", "--evaluate.episodes", "3", "--learner.log_every_s", "0.5")


def test_each_evaluation_is_of_a_known_step_and_the_best_policy_is_kept(tmp_path: Path) -> None:
    folder, flags = tmp_path / "x", ("--evaluate.times", "2", "--learner.checkpoint_every_steps", "3000")
    done("train", "--root", tmp_path, "--name", "x", "--env", INFO, "--total_steps", "8000", *flags, *QUICK)
    first, last = evaluations.read_evaluations(folder)
    assert 4000 <= first["agent_steps"] < 8000 == last["agent_steps"]
    for row in (first, last):
        assert (row["episodes"], row["bounded"], len(row["returns"])) == (3, 0, 3)
        assert row["info/episode.l"] == row["mean_length"], "RecordEpisodeStatistics counts the same steps"
    assert not run_files.list_checkpoints(folder, run_files.TO_EVALUATE)
    kept = [steps for steps, _ in run_files.list_checkpoints(folder)]
    assert [steps // 3000 for steps in kept] == [1, 2]
    with (folder / run_files.EPISODES).open() as file:
        episodes = list(csv.DictReader(file))
    assert all(json.loads(row["infos"])["episode.l"] == float(row["length"]) for row in episodes)
    assert rows_of(folder)[-1]["info/episode.l"]
    best = max((last, first), key=lambda row: row["mean_return"])
    for name, steps in (("best", best["agent_steps"]), (str(kept[0]), kept[0])):
        [result] = evaluate_run(f"x:{name}", "--root", tmp_path, "--episodes", "1", "--env", INFO)
        assert result["agent_steps_trained"] == steps


def test_levels_by_name_are_evaluated_while_training_and_afterwards(tmp_path: Path) -> None:
    run, small = ("--root", tmp_path, "--name", "x"), "zipf/Gridworld-small"
    flags = ("--env", small, "--net.core", "lstm", "--total_steps", "2000", "--evaluate.times", "1", *QUICK)
    done("train", *run, *flags, "--evaluate.levels", "rare,zipf")
    rare, usual = evaluations.read_evaluations(tmp_path / "x")
    assert (rare["env"], usual["env"]) == (f"{small}-rare", small)
    assert min(rare["info/map"], rare["info/object"]) >= 8
    assert rare["info/is_success"] == rare["mean_return"]
    found = zerobeast.evaluate(tmp_path / "x", levels=["uniform", small], episodes=2)
    assert [each.env for each in found] == [f"{small}-uniform", small]
    assert zerobeast.load(tmp_path / "x").config.evaluate.levels == "rare,zipf"
    assert zerobeast.load(tmp_path / "x", env=small).config.evaluate.levels == "", "they are of the run's environment"
    with pytest.raises(ConfigError):
        zerobeast.evaluate(tmp_path / "x")
