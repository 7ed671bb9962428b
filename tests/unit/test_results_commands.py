"""`beast plot`, `beast compare` and `beast runs`, and the same from Python."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import zerobeast as zb
from tests.build.folders import evaluation, save_run, seeds
from zerobeast.cli import compare, runs
from zerobeast.cli.main import main
from zerobeast.common.files import evaluations

RISING = [{100: 10.0, 200: 20.0, 300: 30.0}, {100: 20.0, 200: 30.0, 300: 50.0}, {100: 0.0, 200: 10.0, 300: 10.0}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    seeds(tmp_path / "runs", "ppo", RISING)
    seeds(tmp_path / "runs", "dqn", RISING[:1], algo="dqn")
    return tmp_path / "runs"


def lines(figure: Figure) -> list[list[float]]:
    """The values of each curve of a figure's first panel."""
    return [[*map(float, line.get_ydata())] for line in figure.axes[0].lines]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rows(names: str, root: Path, **how: Any) -> list[dict[str, Any]]:
    """The rows of a comparison."""
    found: list[dict[str, Any]] = json.loads(zb.compare(names, root=root, **how).to_json(orient="records"))
    return found


def test_a_group_is_a_line_with_a_band_and_its_number_of_runs(root: Path) -> None:
    figure = zb.plot("*", root=root, threshold=25.0, x="steps,time")
    first, second = figure.axes
    assert lines(figure)[:2] == [[10.0, 20.0, 30.0], [10.0, 20.0, 30.0]]
    assert len(first.collections) == 1, "a single run has no band"
    assert second.get_xlabel() == "seconds"
    assert labels(figure) == ["PPO (n=3)", "DQN (n=1)"]
    assert first.get_ylabel() == "evaluation return\n(greedy, 2 episodes)"
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("ppo* --out missing/c.png", "missing/c.png"),
        ("ppo* --of los", "los"),
        ("ppo* dqn* --by-env --of loss", "metrics.csv"),
        ("broken", "evaluations.csv, line 3"),
    ],
)
def test_a_plot_that_cannot_be_is_refused(
    root: Path, argv: str, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    (root / "dqn-seed1" / "evaluations.csv").write_text("agent_steps,env,mean_return,loss\n1,x,1,2\n")
    (root / "ppo-seed1" / "metrics.csv").write_text("agent_steps,loss\n1,2\n")
    (save_run(root, "broken") / "evaluations.csv").write_text("agent_steps,mean_return\n1,2\n3,y\n")
    assert main(["plot", *argv.split()]) == 2
    assert named in capsys.readouterr().err
    assert not list(root.parent.glob("*.new"))


def test_a_comparison_counts_runs_that_never_reached_the_threshold(root: Path) -> None:
    ppo, dqn = rows("*", root, threshold=30.0)
    assert (ppo["group"], ppo["n"], ppo["mean"], ppo["scores"]) == ("PPO", 3, 30.0, [30.0, 50.0, 10.0])
    assert ppo["mean_low"] < 30.0 < ppo["mean_high"]
    assert dqn["mean_low"] is None
    assert (ppo["reached"], ppo["steps_to_threshold"], ppo["seconds_to_threshold"]) == (2, 300.0, 30.0)
    ppo, dqn = rows("*", root, threshold=40.0)
    assert (ppo["reached"], ppo["steps_to_threshold"], dqn["reached"]) == (1, None, 0)
    each = [(row["group"], row["mean"], row["most_agent_steps"]) for row in rows("ppo*", root, at=250, each=True)]
    assert each == [("ppo-seed1", 20.0, 200), ("ppo-seed2", 30.0, 200), ("ppo-seed3", 10.0, 200)]


def test_each_level_of_evaluations_is_a_line_and_a_row(root: Path) -> None:
    folder = save_run(root, "zipf", {100: 1.0}, env="small", evaluate={"levels": "zipf,rare"})
    levels = {"small": (0.75, "zipf"), "small-rare": (0.25, "rare")}
    found = [evaluation(100, value, env) | {"level": name} for env, (value, name) in levels.items()]
    evaluations.write_evaluations(folder, found)
    figure = zb.plot("zipf", root=root)
    assert (lines(figure), labels(figure)) == ([[0.75], [0.25]], ["PPO, zipf (n=1)", "PPO, rare (n=1)"])
    assert len({line.get_linestyle() for line in figure.axes[0].lines}) == 2
    assert [(row["group"], row["mean"]) for row in rows("zipf", root)] == [("PPO, zipf", 0.75), ("PPO, rare", 0.25)]
    without_levels = save_run(root, "zipf2", env="small", seed=2)
    evaluations.write_evaluations(without_levels, [evaluation(100, 0.25, "small")])
    assert [(row["runs"], row["n"]) for row in rows("zipf*", root)] == [(["zipf", "zipf2"], 2), (["zipf"], 1)]
    assert len(rows("zipf*", root, env="small-rare")) == len(rows("zipf*", root, of="training")) == 1


def test_greedy_and_sampled_returns_share_no_line_row_or_column(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):  # the second half of their evaluations with other actions, as of a run that was continued so
        made = [evaluation(100, 1.0, "CartPole-v1"), evaluation(200, 90.0, "CartPole-v1") | {"actions": "sampled"}]
        evaluations.write_evaluations(save_run(root, f"both-{seed}", {300: 5.0}, seed=seed), made)
    assert [(row["group"], row["actions"], row["n"], row["mean"]) for row in rows("both*", root)] == [
        ("PPO, greedy", "greedy", 2, 1.0),
        ("PPO, sampled", "sampled", 2, 90.0),
    ]
    figure = zb.plot("both*", root=root)
    assert (lines(figure), labels(figure)) == ([[1.0], [90.0]], ["PPO, greedy (n=2)", "PPO, sampled (n=2)"])
    assert "two runs" in figure.legends[0].get_title().get_text(), "whose band is no interval"
    capsys.readouterr()
    for names, remarked in (("both*", True), ("ppo*", False), ("both-1", False)):
        assert compare.main([names, "--root", str(root)]) == 0
        assert ("two runs" in capsys.readouterr().err) == remarked
    shown = overviews(root, capsys)["both-1"]
    assert (shown["score_of"], shown["last_score"], shown["best_score"]) == ("sampled evaluation", 90.0, 90.0)


def test_games_have_a_row_and_a_normalised_score_each(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    games = {"PongNoFrameskip-v4": 14.6, "BreakoutNoFrameskip-v4": 1.7}
    folder = save_run(root, "games", {100: 1.0}, env=",".join(games))
    evaluations.write_evaluations(folder, [evaluation(100, value, env) for env, value in games.items()])
    found = {row["group"]: (row["mean"], row["human_normalized"]) for row in rows("games", root)}
    assert found == {"PPO, PongNoFrameskip-v4": (14.6, 1.0), "PPO, BreakoutNoFrameskip-v4": (1.7, 0.0)}
    for name, env in zip(("pong", "breakout"), games, strict=True):
        seeds(root / "atari", name, RISING[:2], env=env)
    assert compare.main(["*", "--root", str(root / "atari"), "--by-env", "--threshold", "1e9"]) == 0
    _, _, first, *_ = capsys.readouterr().out.splitlines()
    assert all(cell in first for cell in (" never |", "0 of 2", "133 % |"))
    of_frames = rows("*", root / "atari", by_env=True, of="env_frames")
    assert all("human" not in row for row in of_frames), "only returns have that"


def overviews(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert runs.main(["--root", str(root), "--json"]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)}


def test_locks_checkpoint_and_steps_tell_the_state_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path, "done", {400: 5.0})
    (save_run(tmp_path, "at-return", {200: 5.0}, stop_at_return=4.0) / "reached").touch()
    (save_run(tmp_path, "stopped", {200: 5.0, 300: 2.0}) / "checkpoint.pt").touch()
    (save_run(tmp_path, "failed") / ".lock").touch()
    save_run(tmp_path / "something", "elsewhere")
    (tmp_path / "unknown").symlink_to("something/elsewhere")
    (tmp_path / "latest").symlink_to("done")
    folder = save_run(tmp_path, "running", {400: 5.0}, {100: 7.0, 200: 6.0})
    with (folder / ".learner.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = overviews(tmp_path, capsys)
    states = {name: run["state"] for name, run in found.items()}
    assert states.pop("at-return") == "done"
    assert states == {name: name for name in ("done", "stopped", "failed", "unknown", "running")}
    assert overviews(tmp_path, capsys)["running"]["state"] == "failed", "all steps, and no policy"
    (folder / "checkpoint.pt").touch()
    assert overviews(tmp_path, capsys)["running"]["state"] == "done"
    stopped, running = found["stopped"], found["running"]
    assert (stopped["agent_steps"], stopped["last_score"], stopped["best_score"]) == (300, 2.0, 5.0)
    assert (running["last_score"], running["best_score"], running["score_of"]) == (6.0, 7.0, "greedy evaluation")
    assert stopped["size_bytes"] > 0
    assert stopped["age_s"] >= 0


def test_broken_folders_are_shown_with_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path, "whole", {400: 5.0})
    (save_run(tmp_path, "binary", {400: 5.0}) / "config.yaml").write_bytes(b"\xff\x00\x1b[31m")
    (save_run(tmp_path, "table") / "metrics.csv").write_bytes(os.urandom(500))
    (save_run(tmp_path, "rows") / "evaluations.csv").write_text("agent_steps,mean_return\nx,y\n")
    (save_run(tmp_path, "folder") / "metrics.csv").mkdir()
    os.mkdir(os.fsencode(tmp_path) + b"/name\xff")
    (next(tmp_path.glob("name*")) / "checkpoint.pt").touch()
    pipes = save_run(tmp_path, "pipes")
    (pipes / "config.yaml").unlink()
    for name in ("config.yaml", "metrics.csv", "evaluations.csv", ".lock"):
        os.mkfifo(pipes / name)
    found = overviews(tmp_path, capsys)
    broken = {"binary", "rows", "folder", "pipes", "name\ufffd"}
    assert set(found) == {"whole", "table", *broken}
    assert {name for name, run in found.items() if run["trouble"]} == broken
    assert runs.main(["--root", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1 + len(found)
    assert "\x1b" not in output.out + output.err
