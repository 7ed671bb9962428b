"""`beast plot`, `beast compare` and `beast runs`, from their flags to what they write."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import zerobeast as zb
from tests.build.folders import evaluation, saved, seeds
from zerobeast.cli import compare, plot, runs
from zerobeast.cli.main import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations
from zerobeast.common.files.run_files import is_held
from zerobeast.results.overview import overview

RISING = [{100: 10.0, 200: 20.0, 300: 30.0}, {100: 20.0, 200: 30.0, 300: 50.0}, {100: 0.0, 200: 10.0, 300: 10.0}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    seeds(tmp_path / "runs", "ppo", RISING)
    seeds(tmp_path / "runs", "dqn", RISING[:1], algo="dqn")
    return tmp_path / "runs"


def drawn(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> Figure:
    """The figure that a command draws."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *to, **how: figures.append(figure) or save(figure, *to, **how)
    )
    assert plot.main(argv) == 0
    return figures[0]


def test_a_group_is_a_line_with_a_band_and_its_number_of_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = root / "curves.png"
    figure = drawn(monkeypatch, ["*", "--root", str(root), "--out", str(out), "--threshold", "25", "--x", "steps,time"])
    assert out.read_bytes().startswith(b"\x89PNG")
    first, second = figure.axes
    assert [line.get_ydata().tolist() for line in first.lines[:2]] == [[10.0, 20.0, 30.0], [10.0, 20.0, 30.0]]
    assert len(first.collections) == 1, "a single run has no band"
    assert second.get_xlabel() == "seconds"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["PPO (n=3)", "DQN (n=1)"]
    assert first.get_ylabel() == "evaluation return\n(greedy, 2 episodes)"
    shown = zb.plot("*", root=root, threshold=25.0)
    assert [line.get_ydata().tolist() for line in shown.axes[0].lines[:2]] == [[10.0, 20.0, 30.0]] * 2
    assert shown._repr_png_().startswith(b"\x89PNG")


def test_training_is_shown_unless_all_runs_were_evaluated(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(root, "ppo-seed4", {100: 1.0}, seed=4)
    figure = drawn(monkeypatch, ["ppo*", "--root", str(root), "--out", str(root / "c.pdf"), "--smooth", "2"])
    assert figure.axes[0].get_ylabel() == "training return\n(mean of up to 100 episodes),\nmean of the last 2 points"
    assert "since ppo-seed4 has no evaluations" in capsys.readouterr().out


def test_an_algorithm_has_the_same_colour_in_every_picture(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ["--root", str(root), "--out", str(root / "curves.svg")]
    both, alone = (drawn(monkeypatch, [name, *out]).axes[0] for name in ("*", "dqn*"))
    assert both.lines[1].get_color() == alone.lines[0].get_color()
    assert both.lines[1].get_marker() == alone.lines[0].get_marker() != both.lines[0].get_marker()


def test_each_environment_has_a_panel_and_a_picture_is_the_same_again(root: Path) -> None:
    saved(root, "pong", {10: 1.0}, env="Pong-v5", algo="_$x$")
    flags = ["--root", str(root), "--of", "training", "--by-env", "--dark"]
    for number in (1, 2):
        assert plot.main(["*", *flags, "--out", str(root / f"{number}.svg")]) == 0
    assert (root / "1.svg").read_bytes() == (root / "2.svg").read_bytes()


def test_what_is_left_out_is_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(root, "ppo-seed4", {10: ""}, seed=4)
    saved(root, "ppo-seed5", {400: 1.0}, seed=5)
    out = ["--root", str(root), "--of", "training", "--x", "steps,time", "--out", str(root / "c.png")]
    assert plot.main(["ppo*", *out]) == 0
    said = capsys.readouterr().out
    assert "left out: ppo-seed4, which has no training yet" in said
    assert "left out: ppo-seed5, which has no steps in common with the others of its group" in said


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nothing"], "there is no run 'nothing'"),
        (["ppo*", "--out", "c.jpg"], "expected a name that ends with .png, .svg, .pdf"),
        (["ppo*", "--out", "missing/c.png"], "missing/c.png cannot be written"),
        (["new", "--of", "training"], "none of 1 runs has mean_return_100 yet"),
        (["ppo*", "--x", "stepz"], "no column 'stepz'"),
        (["new", "--of", "los"], "nothing to draw: none of 1 runs has los yet"),
        (["ppo*", "--of", "los"], "no column 'los' there"),
        (["mixed", "dqn*", "--by-env", "--of", "loss"], "of loss: of mixed it is in metrics.csv, of dqn-seed1 in"),
        (["*"], "--by-env"),
        (["ppo*", "--env", "CartPole"], "did you mean CartPole-v1?"),
        (
            ["broken"],
            "evaluations.csv, line 3: not a table of evaluations: ",
        ),
    ],
)
def test_a_plot_that_cannot_be_is_refused_in_a_sentence(
    root: Path, argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    saved(root, "new", env="Pong-v5")
    if "mixed" in argv:
        (root / "dqn-seed1" / "evaluations.csv").write_text("agent_steps,env,mean_return,loss\n1,x,1,2\n")
        (saved(root, "mixed") / "metrics.csv").write_text("agent_steps,loss\n1,2\n")
    if "broken" in argv:
        (saved(root, "broken") / "evaluations.csv").write_text("agent_steps,mean_return\n1,2\n3,y\n")
    assert main(["plot", *argv]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(root.parent.glob("*.new"))


def rows(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert compare.main([*argv, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_comparison_counts_runs_that_never_reached_the_threshold(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ppo, dqn = rows(["*", "--root", str(root), "--threshold", "30"], capsys)
    assert (ppo["group"], ppo["n"], ppo["mean"], ppo["scores"]) == ("PPO", 3, 30.0, [30.0, 50.0, 10.0])
    assert ppo["mean_low"] < 30.0 < ppo["mean_high"]
    assert dqn["mean_low"] is None
    assert (ppo["reached"], ppo["steps_to_threshold"], ppo["seconds_to_threshold"]) == (2, 300.0, 30.0)
    ppo, dqn = rows(["*", "--root", str(root), "--threshold", "40"], capsys)
    assert (ppo["reached"], ppo["steps_to_threshold"], dqn["reached"]) == (1, None, 0)
    assert zb.compare("*", root=root, threshold=40.0)["mean"].tolist() == [ppo["mean"], dqn["mean"]]


@pytest.mark.parametrize("number", ["nan", "inf", "many"])
def test_a_threshold_is_a_finite_number(root: Path, number: str) -> None:
    for command in (plot.main, compare.main):
        with pytest.raises(ConfigError, match=f"--threshold: {number!r}, expected a finite number"):
            command(["ppo*", "--root", str(root), "--threshold", number])


def test_a_mean_of_few_training_episodes_reaches_no_threshold(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("1,10,1,500", "2,20,99,300", "3,30,100,200", "4,40,150,250")
    for seed in (1, 2):
        folder = saved(root, f"few-{seed}", seed=seed)
        (folder / "metrics.csv").write_text("\n".join(["elapsed_s,agent_steps,episodes,mean_return_100", *lines, ""]))
    (found,) = rows(["few-*", "--root", str(root), "--of", "training", "--threshold", "210"], capsys)
    assert (found["reached"], found["steps_to_threshold"], found["mean"]) == (2, 40.0, 250.0)
    assert overview(root / "few-1", 0.0)["best_score"] == 250.0


def test_each_level_of_evaluations_is_a_line_and_a_row(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(root, "zipf", {100: 1.0}, env="small", evaluate={"levels": "zipf,rare"})
    levels = {"small": (0.75, "zipf"), "small-rare": (0.25, "rare")}
    evaluations.write(folder, [evaluation(100, value, env) | {"level": name} for env, (value, name) in levels.items()])
    figure = drawn(monkeypatch, ["zipf", "--root", str(root), "--out", str(root / "curves.png")])
    lines, _ = figure.axes[0].lines, capsys.readouterr()
    assert [line.get_ydata().tolist() for line in lines] == [[0.75], [0.25]]
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["PPO, zipf (n=1)", "PPO, rare (n=1)"]
    argv = ["zipf", "--root", str(root)]
    assert [(row["group"], row["mean"]) for row in rows(argv, capsys)] == [*(("PPO, zipf", 0.75), ("PPO, rare", 0.25))]
    other = saved(root, "zipf2", env="small", seed=2)  # without levels
    evaluations.write(other, [evaluation(100, 0.25, "small")])
    argv[0] = "zipf*"
    for of in ("evaluation", "mean_return", "episodes"):
        found = [(row["runs"], row["n"]) for row in rows([*argv, "--of", of], capsys)]
        assert found == [(["zipf", "zipf2"], 2), (["zipf"], 1)]
    assert len(rows([*argv, "--env", "small-rare"], capsys)) == len(rows([*argv, "--of", "training"], capsys)) == 1
    assert len(drawn(monkeypatch, [*argv, "--out", str(root / "curves.png")]).axes[0].lines) == 2


def _remarks(names: str, root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert compare.main([names, "--root", str(root)]) == 0
    return capsys.readouterr().err


def test_greedy_and_sampled_evaluations_never_share_a_line_a_row_or_a_column(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):  # the second half of their evaluations with other actions, as of a run that was continued so
        made = [evaluation(100, 1.0, "CartPole-v1"), evaluation(200, 90.0, "CartPole-v1") | {"actions": "sampled"}]
        evaluations.write(saved(root, f"both-{seed}", {300: 5.0}, seed=seed), made)
    argv = ["both*", "--root", str(root)]
    found = [(row["group"], row["actions"], row["n"], row["mean"]) for row in rows(argv, capsys)]
    assert found == [("PPO, greedy", "greedy", 2, 1.0), ("PPO, sampled", "sampled", 2, 90.0)]
    compare.main(argv)
    first, second = capsys.readouterr().out.split("\n\n")
    assert "(greedy, 2 episodes)" in first
    assert "(sampled, 2 episodes)" in second
    figure = drawn(monkeypatch, [*argv, "--out", str(root / "curves.png")])
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[1.0], [90.0]]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["PPO, greedy (n=2)", "PPO, sampled (n=2)"]
    remark = "of two runs: from the lowest to the highest"
    assert remark in figure.legends[0].get_title().get_text()
    capsys.readouterr()
    assert [remark in _remarks(names, root, capsys) for names in ("both*", "ppo*", "both-1")] == [True, False, False]
    shown = overviews(root, capsys)["both-1"]
    assert (shown["score_of"], shown["last_score"], shown["best_score"]) == ("sampled evaluation", 90.0, 90.0)


def test_a_run_of_several_games_has_a_row_and_a_normalised_score_of_each(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    games = {"PongNoFrameskip-v4": 14.6, "BreakoutNoFrameskip-v4": 1.7}
    folder = saved(root, "games", {100: 1.0}, env=",".join(games))
    evaluations.write(folder, [evaluation(100, value, env) for env, value in games.items()])
    wanted = ("group", "mean", "human_normalized")
    found = [tuple(row[name] for name in wanted) for row in rows(["games", "--root", str(root)], capsys)]
    assert found == [("PPO, PongNoFrameskip-v4", 14.6, 1.0), ("PPO, BreakoutNoFrameskip-v4", 1.7, 0.0)]


def test_values_after_the_same_steps_and_of_each_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(["ppo*", "--root", str(root), "--at", "250", "--each"], capsys)
    assert [(row["group"], row["mean"], row["most_agent_steps"]) for row in found] == [
        ("ppo-seed1", 20.0, 200),
        ("ppo-seed2", 30.0, 200),
        ("ppo-seed3", 10.0, 200),
    ]


def test_a_table_in_markdown_has_a_cell_for_each_column(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds(root / "atari", "pong", RISING[:2], env="PongNoFrameskip-v4")
    seeds(root / "atari", "breakout", RISING[:2], env="BreakoutNoFrameskip-v4")
    flags = ["*", "--root", str(root / "atari"), "--by-env", "--threshold", "1e9"]
    assert compare.main(flags) == 0
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert all(line.count(" | ") == header.count(" | ") for line in lines)
    assert " never |" in lines[0]
    assert "0 of 2" in lines[0]
    assert "133 % |" in lines[0]
    assert all("human" not in row for row in rows([*flags, "--of", "env_frames"], capsys)), "only returns have that"


def overviews(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert runs.main(["--root", str(root), "--json"]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)}


def test_the_state_of_a_run_is_derived_from_locks_checkpoint_and_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, "done", {400: 5.0})
    (saved(tmp_path, "at-return", {200: 5.0}, stop_at_return=4.0) / "reached").touch()
    (saved(tmp_path, "stopped", {200: 5.0, 300: 2.0}) / "checkpoint.pt").touch()
    (saved(tmp_path, "failed") / ".lock").touch()
    saved(tmp_path, "unknown")
    folder = saved(tmp_path, "running", {400: 5.0}, {100: 7.0, 200: 6.0})
    (tmp_path / "latest").symlink_to("done")
    (tmp_path / "something").mkdir()
    saved(tmp_path / "something", "elsewhere")
    (tmp_path / "linked").symlink_to("something/elsewhere")
    with (folder / ".learner.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(folder / ".learner.lock")
        found = overviews(tmp_path, capsys)
    states = {name: run["state"] for name, run in found.items()}
    assert (states.pop("at-return"), states.pop("linked")) == ("done", "unknown")
    assert states == {name: name for name in states}
    assert len(states) == 5
    assert overviews(tmp_path, capsys)["running"]["state"] == "failed", "all steps, and no policy"
    (folder / "checkpoint.pt").touch()
    assert overviews(tmp_path, capsys)["running"]["state"] == "done"
    stopped, running = found["stopped"], found["running"]
    assert (stopped["agent_steps"], stopped["last_score"], stopped["best_score"]) == (300, 2.0, 5.0)
    assert (running["last_score"], running["best_score"], running["score_of"]) == (6.0, 7.0, "greedy evaluation")
    assert stopped["size_bytes"] > 0
    assert stopped["age_s"] >= 0


def test_broken_folders_are_shown_with_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "whole", {400: 5.0})
    (saved(tmp_path, "binary", {400: 5.0}) / "config.yaml").write_bytes(b"\xff\x00\x1b[31m")
    (saved(tmp_path, "table") / "metrics.csv").write_bytes(os.urandom(500))
    (saved(tmp_path, "rows") / "evaluations.csv").write_text("agent_steps,mean_return\nx,y\n")
    (saved(tmp_path, "folder") / "metrics.csv").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "checkpoint.pt").touch()
    os.mkdir(os.fsencode(tmp_path) + b"/name\xff")
    (next(tmp_path.glob("name*")) / "checkpoint.pt").touch()
    pipes = saved(tmp_path, "pipes")
    (pipes / "config.yaml").unlink()
    for name in ("config.yaml", "metrics.csv", "evaluations.csv", ".lock"):
        os.mkfifo(pipes / name)
    found = overviews(tmp_path, capsys)
    assert set(found) == {"whole", "binary", "table", "rows", "folder", "bare", "pipes", "name\ufffd"}
    broken = {"binary", "rows", "folder", "bare", "pipes", "name\ufffd"}
    assert {name for name, run in found.items() if run["trouble"]} == broken
    assert found["whole"]["state"] == found["binary"]["state"].replace("unknown", "done") == "done"
    assert runs.main(["--root", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 9
    assert "\x1b" not in output.out + output.err


def test_a_folder_without_runs_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.main(["--root", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="missing: No such file"):
        runs.main(["--root", str(tmp_path / "missing")])


def test_none_of_these_commands_loads_torch(root: Path) -> None:
    out = ["--out", str(root / "c.png")]
    commands = [[*argv, "--root", str(root)] for argv in (["plot", "ppo*", *out], ["compare", "ppo*"], ["runs"])]
    call = f"from zerobeast.cli.main import main; print([main(argv) for argv in {commands}])"
    script = f"import sys; {call}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
